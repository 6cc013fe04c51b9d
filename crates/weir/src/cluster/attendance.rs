//! Tells the broker which topics have subscribers here. It says which node tells the receivers of
//! notices that a topic is occupied or vacated.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::{debug, warn};
use weir_broker::Broker;

use super::Turns;
use crate::topics::Router;

/// Tells the broker until the gateway ends.
///
/// Limits: one call at a time, with at most [`BATCH`] topics. What the broker does not take stays
/// with the router, which keeps only the newest state of each topic.
pub(crate) async fn run(router: Arc<Router>, (broker, turns): (Arc<dyn Broker>, Turns)) {
    let mut has_failed = false;
    loop {
        router.attendance_due().await;
        sleep(TICK).await;
        let _turn = turns.take().await;
        while !router.is_broker_lost() {
            let asked = router.take_attendances(BATCH);
            if asked.is_empty() {
                break;
            }
            let answers = broker.attend(asked.clone()).await;
            let failure = answers.as_ref().err().map(ToString::to_string);
            router.handle_occupancies(&asked, answers.ok());
            match failure {
                None => has_failed = false,
                Some(error) if !std::mem::replace(&mut has_failed, true) => {
                    warn!(
                        error,
                        "the broker does not take which topics have subscribers; it is told again"
                    );
                    break;
                }
                Some(error) => {
                    debug!(error, "the broker does not take which topics have subscribers");
                    break;
                }
            }
        }
    }
}

/// Changes are collected for so long.
const TICK: Duration = Duration::from_millis(250);
/// Topics in one call.
const BATCH: usize = 512;
