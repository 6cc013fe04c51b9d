//! What is refused, by which limit, and what is counted.

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

#[test]
fn so_many_goodbyes_in_a_second() {
    let goodbyes = Goodbyes::default();
    for second in [0, 1, 7] {
        let said = (0..3 * GOODBYES_PER_SECOND).filter(|_| goodbyes.may_be_said(second)).count();
        assert_eq!(said, GOODBYES_PER_SECOND);
    }
}
