//! Running resumes for another process, and from one.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use weir_engine::TopicId;
use weir_engine::handover::NotUnderstood;
use weir_wire::handover::v1;

use super::{Resumes, Running};
use crate::base::handover::{at, refused};
use crate::observe::counters::ResumeOutcome;
use crate::topics::handover::Shards;
use crate::topics::lock;

impl Resumes {
    /// The number of the next one, and those that run, in the order of their connections.
    pub(in crate::topics) fn export(&self) -> (u32, Vec<v1::TopicResume>) {
        let running = lock(&self.running);
        let mut conns: Vec<_> = running.iter().collect();
        conns.sort_unstable_by_key(|(conn, _)| **conn);
        let resumes = conns.into_iter().flat_map(|(conn, of_conn)| {
            of_conn.iter().map(|running| v1::TopicResume {
                connection: conn.to_u64(),
                topic: running.topic.0,
                first: running.first,
                last: running.last,
                epoch: running.epoch,
                outcome: running.outcome as u32,
                has_begun: running.has_begun,
            })
        });
        (self.numbers.load(Ordering::Relaxed), resumes.collect())
    }

    /// Takes those of another process; returns how many each topic has.
    pub(in crate::topics) fn import(
        &self,
        next: u32,
        resumes: Vec<v1::TopicResume>,
        shards: Shards,
    ) -> Result<HashMap<TopicId, u32, foldhash::fast::RandomState>, NotUnderstood> {
        self.numbers.store(next, Ordering::Relaxed);
        let mut running = lock(&self.running);
        let mut of_topics: HashMap<TopicId, u32, _> = HashMap::default();
        for resume in resumes {
            let conn = shards.conn("topic_resume.connection", resume.connection)?;
            let topic = TopicId(resume.topic);
            let of_conn = running.entry(conn).or_default();
            if of_conn.iter().any(|running| running.topic == topic) {
                return Err(refused("topic_resume.topic", resume.topic));
            }
            of_conn.push(Running {
                topic,
                first: resume.first,
                last: resume.last,
                epoch: resume.epoch,
                outcome: at("topic_resume.outcome", &ResumeOutcome::ALL, resume.outcome)?,
                has_begun: resume.has_begun,
            });
            *of_topics.entry(topic).or_default() += 1;
        }
        Ok(of_topics)
    }
}
