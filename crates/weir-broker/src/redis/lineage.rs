//! Topics that come from another primary of a Redis Cluster, because their slots have moved.
//!
//! A topic notes the data set in which it was written: Redis draws another id for that when messages may be lost. A topic
//! whose slot moves meets another id too, although it has lost nothing. Its new primary cannot tell. It refuses, and this
//! node asks the primaries for their ids. If one of them still has the topic's, it has been a primary all the time, and the
//! topic came from it whole.

use std::sync::Arc;
use std::time::Duration;

use redis::{Arg, Cmd};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::keys::is_topic;
use super::requests::Lane;
use super::scripts::{ADOPT, new_epoch};
use super::values;

/// The ids of the primaries' data sets, of those that answer soon.
pub(super) async fn data_sets(lanes: Vec<Arc<Lane>>, until: Instant) -> Vec<String> {
    let until = until.min(Instant::now() + ANSWERS_WITHIN);
    let mut asking = JoinSet::new();
    for lane in lanes {
        asking.spawn(async move {
            let (mut info, mut cluster) = (redis::cmd("INFO"), redis::cmd("CLUSTER"));
            info.arg("replication");
            cluster.arg("INFO");
            let answers = lane.ask(vec![info, cluster], until).await.ok()?;
            let [info, cluster] = &answers[..] else { return None };
            let data_set = data_set(values::text(info).ok()?, values::text(cluster).ok()?);
            data_set.map(str::to_owned)
        });
    }
    let mut found = Vec::new();
    while let Some(answer) = asking.join_next().await {
        found.extend(answer.ok().flatten());
    }
    found
}

/// The id of a primary's data set; `None`: it is a replica, or one that the cluster may have replaced.
fn data_set<'a>(info: &'a str, cluster: &str) -> Option<&'a str> {
    if !info.contains("role:master") || !cluster.contains("cluster_state:ok") {
        return None;
    }
    info.lines().find_map(|line| line.strip_prefix("master_replid:")).map(str::trim)
}

/// Has a primary take over the topics of a request that it has refused.
pub(super) fn adoption(refused: &Cmd, data_sets: &[String]) -> Cmd {
    let texts = refused.args_iter().filter_map(|arg| match arg {
        Arg::Simple(bytes) => Some(bytes),
        Arg::Cursor | _ => None,
    });
    // Behind the word, the script's hash and the number of keys.
    let mut words = texts.skip(2);
    let count = words.next().and_then(|count| str::from_utf8(count).ok()?.parse().ok());
    let keys = words.take(count.unwrap_or(0)).filter(|key| is_topic(key));
    let keys: Vec<String> = keys.map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    let mut adoption = ADOPT.run(keys.iter());
    adoption.arg(new_epoch());
    data_sets.iter().for_each(|id| {
        adoption.arg(id);
    });
    adoption
}

/// So long a primary may take to name its data set: one that is slower counts as lost, and its topics begin new epochs.
const ANSWERS_WITHIN: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::keys::Keys;
    use crate::redis::scripts::PUBLISH;

    #[test]
    fn the_topics_of_a_request_are_adopted() {
        let place = Keys::new("weir").place(&"a}t:b".into());
        let topic = place.key('t');
        let keys = [topic.clone(), place.key('s'), place.part('i', "t:x")];
        let mut refused = PUBLISH.run(keys.iter());
        refused.arg(place.key('t')).arg("message");
        let adoption = adoption(&refused, &["one".to_owned(), "two".to_owned()]);
        let words = adoption.args_iter().filter_map(|arg| match arg {
            Arg::Simple(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Arg::Cursor | _ => None,
        });
        let words: Vec<String> = words.collect();
        assert_eq!((words[2].as_str(), &words[3]), ("1", &topic));
        assert_eq!(words[5..], ["one", "two"]);
    }

    #[test]
    fn only_a_primary_has_a_data_set() {
        let info = "# Replication\r\nrole:master\r\nmaster_replid:8c1f\r\nmaster_replid2:00\r\n";
        assert_eq!(data_set(info, "cluster_state:ok\r\n"), Some("8c1f"));
        assert_eq!(data_set(info, "cluster_state:fail\r\n"), None);
        assert_eq!(data_set(&info.replace("master\r", "slave\r"), "cluster_state:ok\r\n"), None);
    }
}
