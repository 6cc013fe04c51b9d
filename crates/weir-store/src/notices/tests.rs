//! A file of notices, as its users meet it.

use std::sync::Mutex as StdMutex;

use tempfile::TempDir;

use super::*;

/// A source whose clock and truth a test sets.
#[derive(Clone, Default)]
struct Scripted {
    now: Arc<StdMutex<Millis>>,
    standing: Arc<StdMutex<Vec<NewNotice>>>,
    queues: Arc<StdMutex<Vec<QueueId>>>,
}

impl Scripted {
    fn queues(&self) -> Arc<[QueueId]> {
        self.queues.lock().unwrap().clone().into()
    }

    fn notice(&self, body: &str, change: Change) -> NewNotice {
        let at = self.now();
        NewNotice { at, queues: self.queues(), body: body.into(), change }
    }

    fn begins(&self, key: &str) -> NewNotice {
        let standing = Standing { key: key.into(), detail: format!("about {key}").into() };
        self.notice(&format!("{key} begins"), Change::Begins(standing))
    }

    fn ends(&self, key: &str) -> NewNotice {
        self.notice(&format!("{key} ends"), Change::Ends(key.into()))
    }
}

impl NoticeSource for Scripted {
    fn now(&self) -> Millis {
        *self.now.lock().unwrap()
    }

    fn lost(&self, loss: Loss) -> Box<str> {
        format!("{loss:?}").into()
    }

    fn ended(&self, standing: &Standing, is_crash: bool) -> NewNotice {
        let cause = if is_crash { "crash" } else { "gap" };
        let body = format!("{} ended by {cause}: {}", standing.key, standing.detail);
        self.notice(&body, Change::None)
    }

    fn standing(&self) -> Vec<NewNotice> {
        self.standing.lock().unwrap().clone()
    }
}

struct Fixture {
    directory: TempDir,
    source: Scripted,
}

fn queue(name: &str) -> NoticeQueue {
    let keep = Duration::from_secs(60);
    NoticeQueue { name: name.to_owned(), notices_max: 1_000_000, bytes_max: 1 << 30, keep }
}

const ALL: PageLimits = PageLimits { notices_max: usize::MAX, bytes_max: usize::MAX };

impl Fixture {
    fn new() -> Fixture {
        Fixture { directory: TempDir::new().unwrap(), source: Scripted::default() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("notices.db")
    }

    async fn open(&self, queues: Vec<NoticeQueue>) -> (Notices, Vec<(QueueId, QueueWatch)>) {
        let notices = Notices::open(self.path(), self.source.clone()).unwrap();
        let made = notices.set_queues(queues).await.unwrap();
        *self.source.queues.lock().unwrap() = made.iter().map(|(id, _)| *id).collect();
        (notices, made)
    }
}

/// All texts of a queue, once there are so many.
async fn texts(notices: &Notices, queue: QueueId, watch: &QueueWatch, count: u64) -> Vec<String> {
    while watch.status().kept < count {
        watch.arrived().await;
    }
    let page = notices.page(queue, Some(0), ALL).await.unwrap();
    page.notices.into_iter().map(|(_, text)| text).collect()
}

#[tokio::test]
async fn each_queue_gets_its_notices_in_order_and_keeps_its_place() {
    let fixture = Fixture::new();
    let (notices, made) = fixture.open(vec![queue("a"), queue("b")]).await;
    let [(a, watch), (b, _)] = &made[..] else { panic!("two queues") };
    for number in 0..100 {
        let notice = fixture.source.notice(&format!("{number}"), Change::None);
        let queues: Arc<[_]> = if number % 2 == 0 { [*a].into() } else { [*a, *b].into() };
        notices.tell(NewNotice { queues, ..notice });
    }
    let expected: Vec<_> = (0..100).map(|number| number.to_string()).collect();
    assert_eq!(texts(&notices, *a, watch, 100).await, expected);
    let page = notices.page(*b, None, PageLimits { notices_max: 2, ..ALL }).await.unwrap();
    let heard = [(1, "1".to_owned()), (2, "3".to_owned())];
    assert_eq!((page.after, page.first, page.next, &page.notices[..]), (0, 1, 51, &heard[..]));
    // A page has one notice at least.
    let page = notices.page(*b, Some(49), PageLimits { bytes_max: 1, ..ALL }).await.unwrap();
    assert_eq!(page.notices, [(50, "99".to_owned())]);
    notices.acknowledge(*b, 30).await.unwrap();
    // An older one changes nothing.
    notices.acknowledge(*b, 20).await.unwrap();
    let stream = page.stream;
    drop(notices);

    let (notices, made) = fixture.open(vec![queue("b")]).await;
    assert!(!notices.was_broken_off());
    let page = notices.page(made[0].0, None, ALL).await.unwrap();
    assert_eq!((page.after, page.notices.len(), page.stream), (30, 20, stream));
    assert_eq!(made[0].1.status().waiting, 20);
    assert!(notices.page(*a, None, ALL).await.is_err(), "it was removed");
    drop(notices);
    // A queue that returns begins anew, as another stream.
    let (notices, made) = fixture.open(vec![queue("a"), queue("b")]).await;
    let page = notices.page(made[0].0, None, ALL).await.unwrap();
    assert_eq!((page.next, page.notices.len()), (1, 0));
    assert!(made[0].0 != *a && page.stream != stream);
}

#[tokio::test]
async fn a_full_queue_drops_its_oldest_and_counts_them() {
    let fixture = Fixture::new();
    let limits = NoticeQueue { notices_max: 10, ..queue("count") };
    let bytes = NoticeQueue { bytes_max: 25, ..queue("bytes") };
    let (notices, made) = fixture.open(vec![limits, bytes]).await;
    let [(count, watch), (bytes, bytes_watch)] = &made[..] else { panic!("two queues") };
    for number in 0..100 {
        notices.tell(fixture.source.notice(&format!("{number:05}"), Change::None));
    }
    // The last one is on its page only when all are written.
    while notices.page(*count, Some(99), ALL).await.unwrap().notices.is_empty() {}
    let page = notices.page(*count, None, ALL).await.unwrap();
    assert_eq!((page.after, page.first, page.next), (0, 91, 101));
    assert_eq!(page.notices.first(), Some(&(91, "00090".to_owned())));
    assert_eq!((watch.status().dropped, watch.status().waiting), (90, 10));
    let page = notices.page(*bytes, None, ALL).await.unwrap();
    assert_eq!((page.first, page.notices.len()), (96, 5));
    assert_eq!((bytes_watch.status().dropped, bytes_watch.status().bytes), (95, 25));
    // What was delivered is not dropped when it goes.
    notices.acknowledge(*count, 95).await.unwrap();
    for number in 0..5 {
        notices.tell(fixture.source.notice(&format!("more {number}"), Change::None));
    }
    while notices.page(*count, Some(104), ALL).await.unwrap().notices.is_empty() {}
    assert_eq!((watch.status().dropped, watch.status().waiting), (90, 10));
}

#[tokio::test]
async fn delivered_notices_are_kept_for_a_while() {
    let fixture = Fixture::new();
    let (notices, made) = fixture.open(vec![queue("a")]).await;
    let (id, watch) = &made[0];
    for at in 0..10 {
        *fixture.source.now.lock().unwrap() = at * 10_000;
        notices.tell(fixture.source.notice(&format!("{at}"), Change::None));
    }
    assert_eq!(texts(&notices, *id, watch, 10).await.len(), 10);
    assert_eq!(watch.status().oldest, None, "the first one happened at 0");
    notices.acknowledge(*id, 8).await.unwrap();
    // At 90 s, those until 30 s are gone.
    let page = notices.page(*id, Some(0), ALL).await.unwrap();
    assert_eq!((page.first, page.notices.len()), (5, 6));
    assert_eq!(watch.status().oldest, Some(80_000));
    // What was not delivered stays.
    *fixture.source.now.lock().unwrap() = 1_000_000_000;
    notices.acknowledge(*id, 8).await.unwrap();
    let page = notices.page(*id, Some(0), ALL).await.unwrap();
    assert_eq!((page.first, page.notices.len(), watch.status().dropped), (9, 2, 0));
}

#[tokio::test]
async fn ends_are_told_once_and_only_of_what_was_told_to_begin() {
    let fixture = Fixture::new();
    let (notices, made) = fixture.open(vec![queue("a")]).await;
    let (id, watch) = &made[0];
    let source = &fixture.source;
    for notice in [
        source.ends("x"),
        source.begins("x"),
        source.begins("x"),
        source.ends("x"),
        source.ends("x"),
        source.begins("x"),
    ] {
        notices.tell(notice);
    }
    let expected = ["x begins", "x ends", "x begins"];
    assert_eq!(texts(&notices, *id, watch, 3).await, expected);
}

#[tokio::test]
async fn the_next_process_tells_what_a_crash_has_ended() {
    let fixture = Fixture::new();
    let (notices, made) = fixture.open(vec![queue("a")]).await;
    let (id, watch) = &made[0];
    for key in ["c", "b", "a"] {
        notices.tell(fixture.source.begins(key));
    }
    notices.tell(fixture.source.ends("b"));
    assert_eq!(texts(&notices, *id, watch, 4).await.len(), 4);
    // The file as a process leaves it that is killed now.
    let copy = Fixture { directory: TempDir::new().unwrap(), source: Scripted::default() };
    for end in ["", "-wal", ".lock"] {
        let name = format!("notices.db{end}");
        let (from, to) = (fixture.directory.path().join(&name), copy.directory.path().join(name));
        std::fs::copy(from, to).unwrap();
    }
    // A process that ends before it has told them leaves that to the next one.
    let (ended, _) = copy.open(vec![queue("a")]).await;
    assert!(ended.was_broken_off());
    ended.close();
    drop(ended);
    let (left, made) = copy.open(vec![queue("a"), queue("new")]).await;
    assert!(left.was_broken_off());
    assert_eq!(left.recover().await.unwrap(), 2);
    // The same key may stand again.
    left.tell(copy.source.begins("a"));
    let (id, watch) = &made[0];
    let heard = texts(&left, *id, watch, 8).await;
    let ended = ["Crash", "a ended by crash: about a", "c ended by crash: about c", "a begins"];
    assert_eq!(heard[4..], ended);
    assert_eq!(left.recover().await.unwrap(), 0);
    let new = left.page(made[1].0, None, ALL).await.unwrap();
    assert_eq!(new.notices.len(), 3, "it has lost nothing: {:?}", new.notices);
}

#[tokio::test]
async fn what_the_buffer_forgets_is_counted_and_made_up_for() {
    let fixture = Fixture::new();
    let (notices, made) = fixture.open(vec![queue("a")]).await;
    let (id, watch) = &made[0];
    let source = &fixture.source;
    notices.tell(source.begins("stays"));
    notices.tell(source.begins("goes"));
    assert_eq!(texts(&notices, *id, watch, 2).await.len(), 2);
    *source.standing.lock().unwrap() = vec![source.begins("stays"), source.begins("comes")];
    // More than it takes, however fast the thread is.
    let large = "x".repeat(Notices::BUFFER_BYTES_MAX);
    notices.tell(source.notice(&format!("{large}y"), Change::None));
    notices.tell(NewNotice { body: format!("{large}y").into(), ..source.ends("goes") });
    let heard = texts(&notices, *id, watch, 5).await;
    assert_eq!(heard[2..], ["Buffer(2)", "goes ended by gap: about goes", "comes begins"]);
    assert_eq!((notices.forgotten(), watch.status().dropped), (2, 2));
    // What stands already is adopted without a notice.
    *source.standing.lock().unwrap() = vec![source.begins("adopted")];
    notices.adopt().await.unwrap();
    notices.tell(source.begins("adopted"));
    notices.tell(source.ends("adopted"));
    assert_eq!(texts(&notices, *id, watch, 6).await[5..], ["adopted ends"]);
}

#[tokio::test]
async fn another_file_and_a_held_file_are_refused() {
    let fixture = Fixture::new();
    let (notices, _) = fixture.open(vec![]).await;
    let error = Notices::open(fixture.path(), Scripted::default()).err().unwrap().to_string();
    assert!(error.contains("is held by process"), "{error}");
    notices.close();
    notices.tell(fixture.source.begins("late"));
    assert!(notices.adopt().await.is_err());
    std::fs::write(fixture.path(), "something else altogether").unwrap();
    let error = Notices::open(fixture.path(), Scripted::default()).err().unwrap().to_string();
    assert!(error.ends_with("is no file of notices"), "{error}");
}

/// What a process does that takes the place of another one: its queues have numbers before the file
/// is open.
fn later(fixture: &Fixture, queues: Vec<NoticeQueue>) -> (Notices, Vec<(QueueId, QueueWatch)>) {
    let made = Notices::later(fixture.path(), fixture.source.clone(), queues).unwrap();
    *fixture.source.queues.lock().unwrap() = made.1.iter().map(|(id, _)| *id).collect();
    made
}

#[tokio::test]
async fn a_file_changes_hands_and_nothing_is_lost_or_told_twice() {
    let fixture = Fixture::new();
    let (first, made) = fixture.open(vec![queue("a"), queue("gone")]).await;
    let stream = first.page(made[0].0, None, ALL).await.unwrap().stream;
    first.tell(fixture.source.begins("c1"));
    first.tell(fixture.source.begins("c2"));
    texts(&first, made[0].0, &made[0].1, 2).await;
    first.acknowledge(made[0].0, 1).await.unwrap();
    let last = fixture.source.notice("last of the first", Change::None);

    let (second, made) = later(&fixture, vec![queue("new"), queue("a")]);
    let [(_, new_watch), (a, watch)] = &made[..] else { panic!("two queues") };
    // Both tell something before the file is free.
    first.tell(last);
    second.begin();
    second.tell(fixture.source.ends("c1"));
    second.tell(fixture.source.begins("c2"));
    second.tell(fixture.source.begins("c3"));
    let asked = second.page(*a, None, ALL);
    drop(first);
    // The second one has told nothing of c2: the first has.
    let heard = texts(&second, *a, watch, 5).await;
    assert_eq!(heard, ["c1 begins", "c2 begins", "last of the first", "c1 ends", "c3 begins"]);
    let page = asked.await.unwrap();
    assert_eq!((page.after, page.stream), (1, stream));
    assert_eq!(new_watch.status().kept, 2);
    // Another configuration, and the numbers stay.
    let again = second.set_queues(vec![queue("a"), queue("new")]).await.unwrap();
    assert_eq!(again.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [*a, made[0].0]);
    second.acknowledge(*a, 5).await.unwrap();
    drop(second);

    // A third one goes on from there, and a restart after it tells who was left.
    let (third, made) = later(&fixture, vec![queue("a")]);
    third.begin();
    third.tell(fixture.source.ends("c2"));
    let (a, watch) = &made[0];
    assert_eq!(texts(&third, *a, watch, 6).await[5], "c2 ends");
    drop(third);
    let (fourth, made) = fixture.open(vec![queue("a")]).await;
    assert_eq!(fourth.recover().await, Ok(1));
    let heard = texts(&fourth, made[0].0, &made[0].1, 7).await;
    assert_eq!(heard[6], "c3 ended by crash: about c3");
}

#[tokio::test]
async fn who_takes_over_from_a_process_that_crashed_says_so_and_compares() {
    let fixture = Fixture::new();
    let (first, made) = fixture.open(vec![queue("a")]).await;
    for key in ["c1", "c2"] {
        first.tell(fixture.source.begins(key));
    }
    texts(&first, made[0].0, &made[0].1, 2).await;
    drop(first);
    // What a process leaves that was killed.
    std::fs::write(fixture.path().with_extension("db.lock"), "4711\n").unwrap();
    let (second, made) = later(&fixture, vec![queue("a")]);
    *fixture.source.standing.lock().unwrap() =
        vec![fixture.source.begins("c2"), fixture.source.begins("c3")];
    second.begin();
    let heard = texts(&second, made[0].0, &made[0].1, 5).await;
    assert_eq!(heard[2..], ["Crash", "c1 ended by gap: about c1", "c3 begins"]);
}

#[tokio::test]
async fn a_file_that_does_not_open_refuses_questions_and_keeps_notices() {
    let fixture = Fixture::new();
    std::fs::create_dir(fixture.path()).unwrap();
    let (notices, made) = later(&fixture, vec![queue("a")]);
    notices.tell(fixture.source.notice("one", Change::None));
    notices.begin();
    let refused = notices.page(made[0].0, None, ALL).await.unwrap_err();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused}");
    assert_eq!(notices.buffered(), 1);
    std::fs::remove_dir(fixture.path()).unwrap();
    assert_eq!(texts(&notices, made[0].0, &made[0].1, 1).await, ["one"]);
}

#[tokio::test]
async fn a_file_that_may_not_be_opened_is_not_touched() {
    let fixture = Fixture::new();
    let (notices, made) = later(&fixture, vec![queue("a")]);
    notices.tell(fixture.source.notice("one", Change::None));
    let asked = notices.page(made[0].0, None, ALL);
    notices.close();
    assert!(asked.await.is_err());
    assert!(!fixture.path().exists());
}

#[tokio::test]
async fn who_goes_on_in_another_file_tells_the_ends_of_what_stands_no_more() {
    let fixture = Fixture::new();
    let (first, made) = fixture.open(vec![queue("a")]).await;
    for key in ["c1", "c2"] {
        first.tell(fixture.source.begins(key));
    }
    texts(&first, made[0].0, &made[0].1, 2).await;
    drop(first);
    let second = Notices::open_to_go_on(fixture.path(), fixture.source.clone()).unwrap();
    let made = second.set_queues(vec![queue("a")]).await.unwrap();
    *fixture.source.queues.lock().unwrap() = vec![made[0].0];
    *fixture.source.standing.lock().unwrap() =
        vec![fixture.source.begins("c2"), fixture.source.begins("c3")];
    second.go_on().await.unwrap();
    second.tell(fixture.source.ends("c3"));
    let heard = texts(&second, made[0].0, &made[0].1, 4).await;
    assert_eq!(heard[2..], ["c1 ended by gap: about c1", "c3 ends"]);
}
