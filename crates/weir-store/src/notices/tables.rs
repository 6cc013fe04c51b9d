//! Queues of notices as rows.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _, Result, ToSql, params};

use super::status::{NoticeStatus, QueueWatch};
use super::{Change, NewNotice, NoticePage, NoticeQueue, PageLimits, QueueId, Standing};
use crate::records::Millis;

/// The tables of a new file.
///
/// `place` is the number of the queue above the sequence number of the notice, so that each queue
/// grows at the end of its own rows.
pub(super) const SCHEMA: &str = "
    CREATE TABLE runs (run INTEGER NOT NULL);
    INSERT INTO runs VALUES (0);
    CREATE TABLE queues (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL UNIQUE,
        stream INTEGER NOT NULL,
        first INTEGER NOT NULL,
        next INTEGER NOT NULL,
        acknowledged INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        dropped INTEGER NOT NULL
    );
    CREATE TABLE notices (
        place INTEGER PRIMARY KEY,
        at INTEGER NOT NULL,
        body BLOB NOT NULL
    );
    CREATE TABLE standing (
        run INTEGER NOT NULL,
        key TEXT NOT NULL,
        detail TEXT NOT NULL,
        PRIMARY KEY (run, key)
    ) WITHOUT ROWID;
";

/// What the thread knows of the rows.
#[derive(Clone)]
pub(super) struct Tables {
    /// The number of this opening of the file.
    run: i64,
    queues: BTreeMap<QueueId, Queue>,
    /// The numbers in the file of queues that had others before it was open.
    numbers: Vec<QueueId>,
}

/// A queue. Its rows are those from `first` to before `next`, without a gap.
#[derive(Clone)]
pub(super) struct Queue {
    stream: u32,
    limits: NoticeQueue,
    first: u64,
    next: u64,
    acknowledged: u64,
    bytes: u64,
    dropped: u64,
    /// Whether the numbers differ from those in its row.
    is_changed: bool,
    watch: QueueWatch,
}

impl Tables {
    /// Begins another run.
    pub(super) fn open(conn: &Connection) -> Result<Tables> {
        conn.execute("UPDATE runs SET run = run + 1", [])?;
        Self::go_on(conn)
    }

    /// Goes on with the run of before: what stands in it stands now.
    pub(super) fn go_on(conn: &Connection) -> Result<Tables> {
        let run = conn.query_row("SELECT run FROM runs", [], |row| row.get(0))?;
        Ok(Tables { run, queues: BTreeMap::new(), numbers: Vec::new() })
    }

    /// The first queues, which have numbers and watches from [`early`] already.
    pub(super) fn set_early(
        &mut self,
        conn: &Connection,
        wanted: &[(NoticeQueue, QueueWatch)],
    ) -> Result<()> {
        let queues: Vec<_> = wanted.iter().map(|(queue, _)| queue.clone()).collect();
        let made = self.set_queues(conn, &queues)?;
        for ((id, _), (_, watch)) in made.iter().zip(wanted) {
            if let Some(queue) = self.queues.get_mut(id) {
                queue.watch = watch.clone();
            }
        }
        self.numbers = made.into_iter().map(|(id, _)| id).collect();
        Ok(())
    }

    /// The number in the file.
    fn number(&self, id: QueueId) -> QueueId {
        let mut all = self.numbers.iter().zip(0..);
        all.find(|(_, place)| early(*place) == id).map_or(id, |(number, _)| *number)
    }

    /// The number by which others know a queue.
    fn known(&self, number: QueueId) -> QueueId {
        let mut all = self.numbers.iter().zip(0..);
        all.find(|(known, _)| **known == number).map_or(number, |(_, place)| early(place))
    }

    /// The queues with their numbers.
    pub(super) fn queues(&self) -> impl Iterator<Item = (&QueueId, &Queue)> {
        self.queues.iter()
    }

    /// Makes the queues those of the list.
    pub(super) fn set_queues(
        &mut self,
        conn: &Connection,
        wanted: &[NoticeQueue],
    ) -> Result<Vec<(QueueId, QueueWatch)>> {
        let mut known = BTreeMap::new();
        let mut select = conn.prepare("SELECT id, name FROM queues")?;
        let rows = select.query_map([], |row| Ok((row.get::<_, String>(1)?, row.get(0)?)))?;
        for row in rows {
            let (name, id): (String, i64) = row?;
            known.insert(name, id);
        }
        for (name, id) in &known {
            if wanted.iter().all(|queue| queue.name != *name) {
                conn.execute("DELETE FROM queues WHERE id = ?", [id])?;
                let (from, to) = (place(QueueId(*id), 0), place(QueueId(*id + 1), 0));
                conn.execute("DELETE FROM notices WHERE place >= ? AND place < ?", [from, to])?;
            }
        }
        let mut queues = BTreeMap::new();
        let mut made = Vec::new();
        for limits in wanted {
            let id = match known.get(&limits.name) {
                Some(id) => *id,
                None => {
                    conn.execute(
                        "INSERT INTO queues (name, stream, first, next, acknowledged, bytes, dropped) \
                         VALUES (?, ?, 1, 1, 0, 0, 0)",
                        params![limits.name, rand::random::<u32>()],
                    )?;
                    conn.last_insert_rowid()
                }
            };
            let id = QueueId(id);
            let watch = self.queues.get(&id).map(|queue| queue.watch.clone()).unwrap_or_default();
            let queue = Queue::read(conn, id, limits.clone(), watch.clone())?;
            queues.insert(id, queue);
            made.push((self.known(id), watch));
        }
        self.queues = queues;
        Ok(made)
    }

    /// Appends a notice to its queues, unless its change is known already.
    pub(super) fn append(&mut self, conn: &Connection, notice: &NewNotice) -> Result<()> {
        let is_news = match &notice.change {
            Change::None => true,
            Change::Begins(Standing { key, detail }) => {
                let sql = "INSERT OR IGNORE INTO standing (run, key, detail) VALUES (?, ?, ?)";
                execute(conn, sql, &[&self.run, key, detail])? > 0
            }
            Change::Ends(key) => {
                let sql = "DELETE FROM standing WHERE run = ? AND key = ?";
                execute(conn, sql, &[&self.run, key])? > 0
            }
        };
        if is_news {
            for id in notice.queues.iter() {
                self.append_to(conn, *id, notice.at, &notice.body)?;
            }
        }
        Ok(())
    }

    /// Notes what has begun, without telling anybody.
    pub(super) fn adopt(&mut self, conn: &Connection, notice: &NewNotice) -> Result<()> {
        let notice = NewNotice { queues: [].into(), body: "".into(), ..notice.clone() };
        self.append(conn, &notice)
    }

    /// Appends a text to one queue, if it exists.
    pub(super) fn append_to(
        &mut self,
        conn: &Connection,
        id: QueueId,
        at: Millis,
        body: &str,
    ) -> Result<()> {
        let id = self.number(id);
        let Some(queue) = self.queues.get_mut(&id) else { return Ok(()) };
        let sql = "INSERT INTO notices (place, at, body) VALUES (?, ?, ?)";
        execute(conn, sql, &[&place(id, queue.next), &integer(at), &body.as_bytes()])?;
        queue.next += 1;
        queue.bytes += body.len() as u64;
        queue.is_changed = true;
        Ok(())
    }

    /// Notes that something was forgotten before it got a number.
    pub(super) fn count_forgotten(&mut self, id: QueueId, count: u64) {
        if let Some(queue) = self.queues.get_mut(&self.number(id)) {
            queue.dropped += count;
            queue.is_changed = true;
        }
    }

    pub(super) fn acknowledge(&mut self, id: QueueId, sequence: u64) {
        if let Some(queue) = self.queues.get_mut(&self.number(id))
            && sequence > queue.acknowledged
        {
            queue.acknowledged = sequence.min(queue.next - 1);
            queue.is_changed = true;
        }
    }

    /// Removes what exceeds the limits, or was delivered long ago. Then writes the queues' rows.
    pub(super) fn finish(&mut self, conn: &Connection, now: Millis) -> Result<()> {
        for (id, queue) in &mut self.queues {
            queue.trim(conn, *id, now)?;
            if std::mem::take(&mut queue.is_changed) {
                queue.write(conn, *id)?;
            }
        }
        Ok(())
    }

    /// Shows the queues as they are, after a commit.
    pub(super) fn show(&self, conn: &Connection) -> Result<()> {
        for (id, queue) in &self.queues {
            let oldest = queue.at(conn, *id, queue.undelivered())?;
            queue.watch.set(NoticeStatus {
                waiting: queue.next - queue.undelivered(),
                kept: queue.next - queue.first,
                bytes: queue.bytes,
                dropped: queue.dropped,
                oldest,
                acknowledged: queue.acknowledged,
            });
        }
        Ok(())
    }

    /// Something that an earlier run has left standing, in the order of the keys.
    pub(super) fn left_standing(
        &self,
        conn: &Connection,
        max: u32,
    ) -> Result<Vec<(i64, Standing)>> {
        let sql = "SELECT run, key, detail FROM standing WHERE run < ? ORDER BY run, key LIMIT ?";
        let mut select = conn.prepare_cached(sql)?;
        let rows = select.query_map(params![self.run, max], |row| {
            let (key, detail) = (row.get::<_, String>(1)?.into(), row.get::<_, String>(2)?.into());
            Ok((row.get(0)?, Standing { key, detail }))
        })?;
        rows.collect()
    }

    /// What this run knows to stand, after a key.
    pub(super) fn standing(
        &self,
        conn: &Connection,
        after: &str,
        max: u32,
    ) -> Result<Vec<Standing>> {
        let sql = "SELECT key, detail FROM standing WHERE run = ? AND key > ? ORDER BY key LIMIT ?";
        let mut select = conn.prepare_cached(sql)?;
        let rows = select.query_map(params![self.run, after, max], |row| {
            let (key, detail) = (row.get::<_, String>(0)?.into(), row.get::<_, String>(1)?.into());
            Ok(Standing { key, detail })
        })?;
        rows.collect()
    }

    /// Appends the notice of the end of something that an earlier run has left standing.
    pub(super) fn end_left(
        &mut self,
        conn: &Connection,
        (run, standing): &(i64, Standing),
        notice: &NewNotice,
    ) -> Result<()> {
        let sql = "DELETE FROM standing WHERE run = ? AND key = ?";
        execute(conn, sql, &[run, &standing.key])?;
        for id in notice.queues.iter() {
            self.append_to(conn, *id, notice.at, &notice.body)?;
        }
        Ok(())
    }

    /// `None`: there is no such queue.
    pub(super) fn page(
        &self,
        conn: &Connection,
        id: QueueId,
        after: Option<u64>,
        limits: PageLimits,
    ) -> Result<Option<NoticePage>> {
        let id = self.number(id);
        let Some(queue) = self.queues.get(&id) else { return Ok(None) };
        let after = after.unwrap_or(queue.acknowledged).min(queue.next - 1);
        let mut page = NoticePage {
            stream: queue.stream,
            after,
            first: queue.first,
            next: queue.next,
            notices: Vec::new(),
        };
        let sql = "SELECT place, body FROM notices WHERE place > ? AND place < ? ORDER BY place";
        let mut select = conn.prepare_cached(sql)?;
        let mut rows = select.query([place(id, after), place(id, queue.next)])?;
        let mut bytes = 0;
        while page.notices.len() < limits.notices_max
            && let Some(row) = rows.next()?
        {
            let body = row.get_ref(1)?.as_blob()?;
            bytes += body.len();
            if bytes > limits.bytes_max && !page.notices.is_empty() {
                break;
            }
            let text = String::from_utf8_lossy(body).into_owned();
            page.notices.push((sequence(row.get(0)?), text));
        }
        Ok(Some(page))
    }
}

impl Queue {
    fn read(
        conn: &Connection,
        id: QueueId,
        limits: NoticeQueue,
        watch: QueueWatch,
    ) -> Result<Queue> {
        let sql =
            "SELECT stream, first, next, acknowledged, bytes, dropped FROM queues WHERE id = ?";
        conn.query_row(sql, [id.0], |row| {
            let number = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
            Ok(Queue {
                stream: row.get(0)?,
                limits,
                first: number(1)?,
                next: number(2)?,
                acknowledged: number(3)?,
                bytes: number(4)?,
                dropped: number(5)?,
                // Its limits may have changed.
                is_changed: true,
                watch,
            })
        })
    }

    /// Whether it has had a notice.
    pub(super) fn is_new(&self) -> bool {
        self.next == 1
    }

    /// The first notice that was not delivered, or else the next one.
    fn undelivered(&self) -> u64 {
        (self.acknowledged + 1).max(self.first)
    }

    fn at(&self, conn: &Connection, id: QueueId, sequence: u64) -> Result<Option<Millis>> {
        if sequence >= self.next {
            return Ok(None);
        }
        let mut select = conn.prepare_cached("SELECT at FROM notices WHERE place = ?")?;
        let at = select.query_row([place(id, sequence)], |row| row.get::<_, i64>(0)).optional()?;
        Ok(at.map(i64::unsigned_abs))
    }

    /// Removes the oldest notices as long as there are too many, or they were delivered long ago.
    fn trim(&mut self, conn: &Connection, id: QueueId, now: Millis) -> Result<()> {
        let keep = u64::try_from(self.limits.keep.as_millis()).unwrap_or(u64::MAX);
        let sql = "SELECT at, length(body) FROM notices WHERE place >= ? AND place < ? \
                   ORDER BY place LIMIT ?";
        let mut select = conn.prepare_cached(sql)?;
        let (mut first, mut bytes) = (self.first, self.bytes);
        let mut rows =
            select.query(params![place(id, first), place(id, self.next), TRIMMED_MAX])?;
        loop {
            let is_over =
                self.next - first > self.limits.notices_max || bytes > self.limits.bytes_max;
            let may_be_old = first <= self.acknowledged;
            if !is_over && !may_be_old {
                break;
            }
            let Some(row) = rows.next()? else { break };
            let (at, length): (i64, i64) = (row.get(0)?, row.get(1)?);
            if !is_over && at.unsigned_abs().saturating_add(keep) > now {
                break;
            }
            first += 1;
            bytes = bytes.saturating_sub(length.unsigned_abs());
        }
        drop(rows);
        if first > self.first {
            let sql = "DELETE FROM notices WHERE place >= ? AND place < ?";
            execute(conn, sql, &[&place(id, self.first), &place(id, first)])?;
            self.dropped += first.saturating_sub(self.undelivered());
            (self.first, self.bytes, self.is_changed) = (first, bytes, true);
        }
        Ok(())
    }

    fn write(&self, conn: &Connection, id: QueueId) -> Result<()> {
        let sql = "UPDATE queues SET first = ?, next = ?, acknowledged = ?, bytes = ?, dropped = ? \
                   WHERE id = ?";
        let values = [self.first, self.next, self.acknowledged, self.bytes, self.dropped];
        let [first, next, acknowledged, bytes, dropped] = values.map(integer);
        execute(conn, sql, &[&first, &next, &acknowledged, &bytes, &dropped, &id.0]).map(drop)
    }
}

/// The number of a queue before the file is open, by its place. The file gives none below 1.
pub(super) fn early(place: i64) -> QueueId {
    QueueId(-1 - place)
}

fn execute(conn: &Connection, sql: &str, values: &[&dyn ToSql]) -> Result<usize> {
    conn.prepare_cached(sql)?.execute(values)
}

fn place(QueueId(id): QueueId, sequence: u64) -> i64 {
    (id << SEQUENCE_BITS) + integer(sequence)
}

fn sequence(place: i64) -> u64 {
    place.unsigned_abs() & ((1 << SEQUENCE_BITS) - 1)
}

fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A million notices a second for twelve days fill a queue's numbers; its file would have petabytes.
const SEQUENCE_BITS: u32 = 40;
/// Rows that one transaction removes from a queue. Each transaction adds fewer than that.
const TRIMMED_MAX: u32 = 200_000;
