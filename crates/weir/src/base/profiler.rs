//! Profiles of the running process. Only the program can make them: they need its allocator, and a
//! signal handler.

/// What makes profiles of the process that embeds the gateway.
pub trait Profiler: Send + Sync {
    /// Starts to sample the CPU time of all threads. Dropping the result ends it.
    ///
    /// Errors: a profile of CPU time is running, or the system does not permit it.
    fn start_cpu(&self) -> Result<Box<dyn CpuProfile>, ProfileError>;

    /// Returns a profile of the memory that is allocated now.
    ///
    /// Cost: it may block for seconds.
    fn heap(&self, format: ProfileFormat) -> Result<Vec<u8>, ProfileError>;
}

/// A running profile of CPU time.
pub trait CpuProfile: Send {
    /// Ends the profile and writes it.
    ///
    /// Cost: it may block for seconds, to find the names of the functions.
    fn finish(self: Box<Self>, format: ProfileFormat) -> Result<Vec<u8>, ProfileError>;
}

/// How a profile is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileFormat {
    /// The format of pprof: protobuf, compressed with gzip.
    Pprof,
    /// A text for flame graphs: a line for each stack, from its root, and its weight.
    Folded,
}

/// The reason why there is no profile. The texts are for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProfileError {
    /// Another one is running.
    Running,
    /// This process cannot make one. The text names the key that would change that.
    Off(String),
    /// The system refused something.
    Failed(String),
}
