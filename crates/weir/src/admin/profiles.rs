//! `/v1/debug/cpu` and `/v1/debug/heap`: profiles of the running process.

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use http::StatusCode;
use http::header::{CONTENT_DISPOSITION, HeaderValue};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::base::profiler::{ProfileError, ProfileFormat, Profiler};
use crate::base::threads::schedule_profile_thread;
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::query::Query;
use crate::http::web::reply::{self, Reply};

/// `GET /v1/debug/cpu`: samples for some seconds, and answers with the samples.
pub(super) async fn cpu(
    profiler: Option<&Arc<dyn Profiler>>,
    query: Option<&str>,
) -> Result<Reply, Problem> {
    let query = Query::parse(query, &["seconds", "format"])?;
    let (seconds, format) = (seconds(&query)?, format(&query)?);
    // Dropped if the caller goes away, which ends the profile.
    let running = known(profiler)?.start_cpu().map_err(problem)?;
    sleep(Duration::from_secs(seconds)).await;
    written(format, move || running.finish(format)).await
}

/// `GET /v1/debug/heap`: the memory that is allocated now.
pub(super) async fn heap(
    profiler: Option<&Arc<dyn Profiler>>,
    query: Option<&str>,
) -> Result<Reply, Problem> {
    let format = format(&Query::parse(query, &["format"])?)?;
    let profiler = Arc::clone(known(profiler)?);
    written(format, move || profiler.heap(format)).await
}

fn known(profiler: Option<&Arc<dyn Profiler>>) -> Result<&Arc<dyn Profiler>, Problem> {
    profiler.ok_or_else(|| Problem::new(Kind::NotFound, "this program makes no profiles"))
}

fn seconds(query: &Query) -> Result<u64, Problem> {
    let Some(value) = query.value("seconds") else { return Ok(SECONDS_DEFAULT) };
    match value.parse() {
        Ok(seconds) if (1..=SECONDS_MAX).contains(&seconds) => Ok(seconds),
        Ok(_) | Err(_) => {
            let detail = format!("seconds is {value:?}; it is a number from 1 to {SECONDS_MAX}");
            Err(Problem::field("seconds", detail))
        }
    }
}

fn format(query: &Query) -> Result<ProfileFormat, Problem> {
    match query.value("format") {
        None | Some("pprof") => Ok(ProfileFormat::Pprof),
        Some("folded") => Ok(ProfileFormat::Folded),
        Some(value) => {
            let detail = format!("format is {value:?}; it is one of {}", FORMATS.join(", "));
            Err(Problem::field("format", detail))
        }
    }
}

/// Writes the profile on a thread of its own, which gives way to all others.
async fn written(
    format: ProfileFormat,
    write: impl FnOnce() -> Result<Vec<u8>, ProfileError> + Send + 'static,
) -> Result<Reply, Problem> {
    let (sender, written) = oneshot::channel();
    let work = move || {
        schedule_profile_thread();
        // The caller may have gone away.
        let _ = sender.send(write());
    };
    let failed = |error: &dyn Error| problem(ProfileError::Failed(format!("no thread: {error}")));
    let thread = thread::Builder::new().name("weir-profile".to_owned()).spawn(work);
    thread.map_err(|error| failed(&error))?;
    let profile = written.await.map_err(|error| failed(&error))?.map_err(problem)?;
    Ok(match format {
        ProfileFormat::Pprof => {
            let mut reply = reply::bytes(StatusCode::OK, PPROF_TYPE, profile.into());
            let name = HeaderValue::from_static("attachment; filename=\"profile.pb.gz\"");
            reply.headers_mut().insert(CONTENT_DISPOSITION, name);
            reply
        }
        ProfileFormat::Folded => reply::bytes(StatusCode::OK, FOLDED_TYPE, profile.into()),
    })
}

fn problem(error: ProfileError) -> Problem {
    match error {
        ProfileError::Running => {
            Problem::new(Kind::ProfileRunning, "another profile is running; only one can")
        }
        ProfileError::Off(detail) => Problem::new(Kind::NotFound, detail),
        ProfileError::Failed(detail) => {
            Problem::retry(Kind::ProfileFailed, Duration::from_secs(1), detail)
        }
    }
}

/// The values of `format`.
pub(super) const FORMATS: [&str; 2] = ["pprof", "folded"];
pub(super) const PPROF_TYPE: &str = "application/octet-stream";
pub(super) const FOLDED_TYPE: &str = "text/plain; charset=utf-8";
pub(super) const SECONDS_DEFAULT: u64 = 10;
/// The samples of so many seconds have a place of fixed size.
pub(super) const SECONDS_MAX: u64 = 60;
