//! Tests of refusals, their limits and their counts.

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

#[test]
fn a_line_tells_where_the_last_refused_came_from() {
    let notice = Notice::default();
    let at = Duration::from_secs;
    assert_eq!(notice.due(at(0)), None);
    let addr = |host| Some(IpAddr::from([192, 0, 2, host]));
    notice.note(addr(7));
    assert_eq!(notice.due(at(1)), Some((1, addr(7))));
    notice.note(addr(8));
    notice.note(addr(9));
    notice.note(None);
    assert_eq!(notice.due(at(10)), None);
    assert_eq!(notice.due(at(11)), Some((3, addr(9))));
    assert_eq!(notice.due(at(30)), None);
}
