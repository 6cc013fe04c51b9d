//! Delivery: one task for each receiver, one request at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request};
use http_body_util::{BodyExt as _, Limited};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{info, warn};
use weir_engine::OwnNode;
use weir_store::PageLimits;
use weir_upstream::{Outgoing, SendOptions};

use super::receiver::{Receiver, Receivers};
use super::{PAGE_BYTES_MAX, body, source};
use crate::backends::Backends;
use crate::backends::signature::{SIGNATURE, sign};
use crate::base::clock::unix_time;

/// The running tasks, by the name of the receiver.
#[derive(Default)]
pub(super) struct Tasks {
    running: HashMap<String, Running>,
}

struct Running {
    receiver: Arc<Receiver>,
    task: JoinHandle<()>,
    /// Tells the task to end after the request that is under way.
    stop: watch::Sender<bool>,
}

/// Sends the notices of one receiver.
struct Delivery {
    receiver: Arc<Receiver>,
    file: Arc<weir_store::Notices>,
    backends: Arc<Backends>,
    own: OwnNode,
}

impl Tasks {
    /// Begins a task for each receiver. Tasks of those that have not changed go on.
    pub(super) fn begin(
        &mut self,
        receivers: &Receivers,
        file: &Arc<weir_store::Notices>,
        (backends, own): (&Arc<Backends>, &OwnNode),
    ) {
        self.running.retain(|_, running| {
            let stays = receivers.iter().any(|one| Arc::ptr_eq(one, &running.receiver));
            if !stays {
                running.task.abort();
            }
            stays
        });
        for receiver in receivers.iter() {
            let (file, backends, own) = (Arc::clone(file), Arc::clone(backends), own.clone());
            self.running.entry(receiver.name().to_owned()).or_insert_with(|| {
                let receiver = Arc::clone(receiver);
                let delivery = Delivery { receiver: Arc::clone(&receiver), file, backends, own };
                let (stop, stopped) = watch::channel(false);
                Running { receiver, task: tokio::spawn(delivery.run(stopped)), stop }
            });
        }
    }

    /// Tells all tasks to end after the request that is under way, and returns them.
    pub(super) fn finish(&mut self) -> Vec<JoinHandle<()>> {
        let finish = |(_, Running { task, stop, .. }): (_, Running)| {
            stop.send_replace(true);
            task
        };
        self.running.drain().map(finish).collect()
    }

    /// Ends all tasks.
    pub(super) fn stop(&mut self) {
        self.running.drain().for_each(|(_, running)| running.task.abort());
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Delivery {
    async fn run(self, mut stop: watch::Receiver<bool>) {
        let Receiver { config, watch, counts, .. } = &*self.receiver;
        let due = async || {
            while watch.status().waiting == 0 {
                watch.arrived().await;
            }
            if watch.status().waiting < config.batch_max as u64 {
                sleep(config.batch_delay).await;
            }
        };
        let mut pause = PAUSE_MIN;
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|is_stopped| *is_stopped) => return,
                () = due() => {}
            }
            let Err(error) = self.deliver().await else {
                pause = PAUSE_MIN;
                if counts.is_failing.swap(false, Ordering::Relaxed) {
                    info!(receiver = config.name, "notices are delivered again");
                }
                continue;
            };
            counts.failures.fetch_add(1, Ordering::Relaxed);
            if !counts.is_failing.swap(true, Ordering::Relaxed) {
                warn!(receiver = config.name, error, "notices are not delivered; they wait");
            }
            // Between half of the pause and all of it: receivers of several nodes do not try as one.
            let now = pause.mul_f64(rand::random_range(0.5..=1.0));
            // Told to end, it does so above.
            let _ = timeout(now, stop.wait_for(|is_stopped| *is_stopped)).await;
            pause = (pause * 2).min(config.backoff_max);
        }
    }

    /// Sends the next notices, and notes that they were delivered.
    async fn deliver(&self) -> Result<(), String> {
        let Receiver { config, counts, .. } = &*self.receiver;
        let limits = PageLimits { notices_max: config.batch_max, bytes_max: PAGE_BYTES_MAX };
        let queue = self.receiver.queue();
        let page = self.file.page(queue, None, limits).await.map_err(|error| error.to_string())?;
        let Some((list, last)) =
            body::list(&page, |count| source::dropped(self.own.number(), count))
        else {
            return Ok(());
        };
        let text = format!(
            "{{\"receiver\":\"{}\",\"stream\":\"{:08x}\",\"notices\":{list}}}",
            config.name, page.stream
        );
        counts.requests.fetch_add(1, Ordering::Relaxed);
        self.send(text.into()).await?;
        counts.delivered.fetch_add(page.notices.len() as u64, Ordering::Relaxed);
        self.file.acknowledge(queue, last).await.map_err(|error| error.to_string())
    }

    async fn send(&self, body: Bytes) -> Result<(), String> {
        let Receiver { config, secret, .. } = &*self.receiver;
        let upstream = self.backends.get(&config.upstream);
        let upstream =
            upstream.ok_or_else(|| format!("there is no upstream {:?}", config.upstream))?;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(config.path.as_str())
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if !secret.is_empty() {
            let signature = sign(secret.as_bytes(), unix_time().as_secs(), &body);
            request = request.header(SIGNATURE, signature);
        }
        let request = request.body(Outgoing::Whole(body)).map_err(|error| error.to_string())?;
        let deadline = Instant::now() + config.timeout;
        let options = SendOptions {
            deadline: Some(deadline),
            // A receiver may get a notice twice in any case.
            idempotent: Some(true),
            ..SendOptions::default()
        };
        let answer = upstream.send(request, options).await.map_err(|error| error.to_string())?;
        let (head, rest) = answer.into_parts();
        // Read to its end, so that the connection can be used again. The head alone decides.
        let rest = Limited::new(rest, ANSWER_BYTES_MAX).collect();
        let _ = timeout_at(deadline, rest).await;
        match head.status {
            status if status.is_success() => Ok(()),
            status => Err(format!("the answer is {status}")),
        }
    }
}

/// The first pause after a failure.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Nobody reads it.
const ANSWER_BYTES_MAX: usize = 64 << 10;
