//! Variables of the environment over the file: `WEIR_<SECTION>_<KEY>`.

use super::file::{HIDDEN, Places, meant};
use super::keys::{self, Key};
use super::{FromVariable, Place, Problem, Settings};

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
        if let Some(key) = keys::all().find(|key| key.variable().as_ref() == Some(&name)) {
            handle(key, &text, place, settings, places, problems);
        } else if let Some(key) = list_of_tables(&name) {
            let what = format!("{} is a list of tables: it can only stand in the file", key.path());
            problems.push(Problem::new(place, what));
        } else if keys::sections().any(|section| begins_like(&name, &section)) {
            let names = keys::all().filter_map(Key::variable);
            problems.push(Problem::new(place, format_args!("no such key{}", meant(&name, names))));
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
        settings.from_variables.push(FromVariable {
            name: place.to_string(),
            key: key.path(),
            instead_of: places.in_file(&key.path()),
        });
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

/// The list of tables that the variable would set, or a member of one of its tables.
fn list_of_tables(name: &str) -> Option<&'static Key> {
    keys::all().find(|key| {
        key.is_list_of_tables()
            && (key.variable_name() == name || begins_like(name, &key.path().replace('.', "_")))
    })
}

fn begins_like(name: &str, path: &str) -> bool {
    let prefix = format!("WEIR_{}_", path.to_uppercase());
    name.strip_prefix(&prefix)
        .is_some_and(|rest| !rest.starts_with("SERVICE_") && !rest.starts_with("PORT"))
}
