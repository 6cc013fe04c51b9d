//! Variables of the environment over the file: `WEIR_<SECTION>_<KEY>`.

use super::file::{HIDDEN, Places, meant};
use super::keys::{self, Key};
use super::{Place, Problem, Settings};

/// Names the configuration file; it is no key.
pub(crate) const CONFIG_VARIABLE: &str = "WEIR_CONFIG";

/// Sets what the variables set.
///
/// A name that begins like a section's but names no key is refused: it would be a typing error that nobody notices.
/// Other names that begin with `WEIR_` are somebody else's: service discovery sets `WEIR_SERVICE_HOST` and its like for
/// a service called weir.
pub(super) fn apply(
    variables: impl IntoIterator<Item = (String, String)>,
    settings: &mut Settings,
    places: &mut Places,
    problems: &mut Vec<Problem>,
) {
    let mut ours: Vec<(String, String)> =
        variables.into_iter().filter(|(name, _)| name.starts_with("WEIR_")).collect();
    ours.sort();
    for (name, text) in ours {
        let place = Place::Variable(name.clone());
        match keys::all().find(|key| key.variable_name() == name) {
            Some(key) if key.variable().is_none() => {
                let what = format_args!("{} can only stand in the file", key.path());
                problems.push(Problem::new(place, what));
            }
            Some(key) => handle(key, &text, place, settings, places, problems),
            None if belongs_to_section(&name) => {
                let names = keys::all().filter_map(Key::variable);
                problems
                    .push(Problem::new(place, format_args!("no such key{}", meant(&name, names))));
            }
            None => {}
        }
    }
}

fn handle(
    key: &Key,
    text: &str,
    place: Place,
    settings: &mut Settings,
    places: &mut Places,
    problems: &mut Vec<Problem>,
) {
    if key.field.set_from_text(settings, text) {
        // Numbers, lists and the like are shown as they are understood.
        let is_text = key.field.show(settings).is_some_and(|shown| shown.starts_with('"'));
        let written = (is_text && !key.is_secret).then(|| format!("{text:?}"));
        places.set(key.path(), place, written);
        return;
    }
    let shown = if key.is_secret { HIDDEN.to_owned() } else { format!("{text:?}") };
    let allowed = key.allowed_in_full();
    problems.push(Problem::not_allowed(place, &key.path(), shown, allowed));
}

fn belongs_to_section(name: &str) -> bool {
    keys::sections().any(|section| {
        let prefix = format!("WEIR_{}_", section.to_uppercase());
        name.strip_prefix(&prefix)
            .is_some_and(|rest| !rest.starts_with("SERVICE_") && !rest.starts_with("PORT"))
    })
}
