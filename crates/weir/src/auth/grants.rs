//! What those who hold a token may do with topics.

use crate::config::Right;

/// What a token permits, and so the connections that were admitted with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Grant {
    /// Sorted.
    labels: Box<[Box<str>]>,
    /// A service's rights, sorted; `None`: a device.
    service: Option<Box<[Right]>>,
}

impl Grant {
    /// Of devices without a token.
    pub(crate) fn anonymous() -> Grant {
        Grant::of_device(&[])
    }

    pub(crate) fn of_device(labels: &[String]) -> Grant {
        let mut labels: Vec<Box<str>> = labels.iter().map(|label| label.as_str().into()).collect();
        labels.sort_unstable();
        labels.dedup();
        Grant { labels: labels.into(), service: None }
    }

    pub(crate) fn of_service(may: &[Right]) -> Grant {
        let may = Right::ALL.into_iter().filter(|right| may.contains(right)).collect();
        Grant { labels: Box::default(), service: Some(may) }
    }
}
