//! Grants as another process reads them.

use weir_engine::handover::NotUnderstood;
use weir_wire::handover::v1;

use super::Grant;
use crate::base::config::Right;
use crate::base::handover::at;
use crate::base::pattern::Pattern;

impl Grant {
    pub(crate) fn export(&self) -> v1::Grant {
        let topics = self.topics.iter().flatten();
        let rights = self.service.iter().flatten();
        v1::Grant {
            labels: self.labels.iter().map(|label| label.to_string()).collect(),
            is_service: self.service.is_some(),
            rights: rights.map(|right| *right as u32).collect(),
            is_limited: self.topics.is_some(),
            topics: topics.map(|topic| topic.as_str().to_owned()).collect(),
        }
    }

    /// Errors: a right that this program does not know.
    pub(crate) fn import(grant: &v1::Grant) -> Result<Grant, NotUnderstood> {
        let mut imported = match grant.is_service {
            true => {
                let rights = grant.rights.iter();
                let rights = rights.map(|right| at("grant.rights", &Right::ALL, *right));
                Grant::of_service(&rights.collect::<Result<Vec<_>, _>>()?)
            }
            false => Grant::of_device(&grant.labels),
        };
        if grant.is_limited {
            imported =
                imported.within(grant.topics.iter().map(|topic| Pattern::new(topic)).collect());
        }
        Ok(imported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_stays_what_it_is() {
        let vip = Grant::of_device(&["vip".to_owned(), "eu".to_owned()]);
        for grant in [
            Grant::anonymous(),
            Grant::anonymous().within(Vec::new()),
            vip.clone(),
            vip.within(vec![Pattern::new("in/{device}/*"), Pattern::new("news")]),
            Grant::of_service(&[]),
            Grant::of_service(&[Right::Call, Right::Publish]),
            Grant::of_service(&Right::ALL),
        ] {
            assert_eq!(Grant::import(&grant.export()), Ok(grant));
        }
        let damaged = v1::Grant { is_service: true, rights: vec![4], ..Default::default() };
        assert!(Grant::import(&damaged).is_err());
        // Patterns are read whatever they contain.
        for text in ["", "{", "}", "{device", "*{device}*{device}**", "\0"] {
            let topics = vec![text.to_owned()];
            let odd = v1::Grant { is_limited: true, topics, ..Default::default() };
            let odd = Grant::import(&odd).unwrap();
            odd.covers(|pattern| pattern.matches_for("a", "b") || pattern.matches("c"));
        }
    }
}
