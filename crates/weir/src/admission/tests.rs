use super::*;

#[test]
fn the_limit_on_open_files_leaves_room_for_the_admin_api() {
    let check = |open_files, own, expected: usize| {
        assert_eq!(sockets_max(open_files, own), expected, "{open_files} less {own}");
    };
    check(u64::MAX, 40, usize::MAX);
    check(20_000, 40, 19_640);
    check(1024, 40, 728);
    check(64, 30, 18);
    check(64, 60, 0);
}
