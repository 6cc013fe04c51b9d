//! Profiles of this process for the admin API.

mod encode;
mod heap;

use std::io;
use std::sync::Mutex;

use tracing::warn;
use weir::{CpuProfile, ProfileError, ProfileFormat, Profiler};

use crate::sys::sampler::{Samples, Sampling};
use encode::{Profile, Stack, ValueKind};
pub(crate) use heap::enable as enable_heap_profile;

/// Makes the profiles.
#[derive(Debug, Default)]
pub(crate) struct OwnProfiler {
    /// Held while a profile of the heap is written.
    heap: Mutex<()>,
}

impl Profiler for OwnProfiler {
    fn start_cpu(&self) -> Result<Box<dyn CpuProfile>, ProfileError> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let sampling = Sampling::start(processors).map_err(|error| {
            if error.kind() == io::ErrorKind::ResourceBusy {
                return ProfileError::Running;
            }
            ProfileError::Failed(format!("cannot sample the CPU time: {error}"))
        })?;
        Ok(Box::new(RunningCpuProfile(sampling)))
    }

    fn heap(&self, format: ProfileFormat) -> Result<Vec<u8>, ProfileError> {
        let Ok(_alone) = self.heap.try_lock() else { return Err(ProfileError::Running) };
        heap::take()?.write(format).map_err(|error| ProfileError::Failed(error.to_string()))
    }
}

#[derive(Debug)]
struct RunningCpuProfile(Sampling);

impl CpuProfile for RunningCpuProfile {
    fn finish(self: Box<Self>, format: ProfileFormat) -> Result<Vec<u8>, ProfileError> {
        let samples = self.0.stop();
        if samples.lost > 0 {
            warn!(lost = samples.lost, "the profile had no room for some of the last samples");
        }
        let written = cpu_profile(samples).write(format);
        written.map_err(|error| ProfileError::Failed(error.to_string()))
    }
}

fn cpu_profile(samples: Samples) -> Profile {
    let period = i64::try_from(samples.interval.as_nanos()).unwrap_or(i64::MAX);
    let stacks = samples.stacks.into_iter().map(|((thread, frames), count)| {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        Stack { thread: Some(thread.text()), frames, values: [count, count * period] }
    });
    Profile {
        kinds: [
            ValueKind { name: "samples", unit: "count" },
            ValueKind { name: "cpu", unit: "nanoseconds" },
        ],
        period,
        began_ms: samples.began_ms,
        duration: samples.duration,
        stacks: stacks.collect(),
        hidden: &[],
    }
}
