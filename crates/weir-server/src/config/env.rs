//! Applies environment variables, which override the file: `WEIR_<SECTION>_<KEY>`.

use weir::keys;

use super::file::{HIDDEN, Places, meant};
use super::names::{Names, variable};
use super::{FromVariable, Place, Problem, Settings};

/// The variable that names the configuration file.
pub(crate) const CONFIG_VARIABLE: &str = "WEIR_CONFIG";

/// Applies the variables to the settings.
///
/// A variable whose name begins like a section's but names no key is refused: it would be an
/// unnoticed typing error. Other names that begin with `WEIR_` belong to other programs: service
/// discovery sets `WEIR_SERVICE_HOST` and the like for a service called weir.
pub(super) fn apply(
    variables: impl IntoIterator<Item = (String, String)>,
    settings: &mut Settings,
    places: &mut Places,
    problems: &mut Vec<Problem>,
) {
    let mut ours: Vec<(String, String)> =
        variables.into_iter().filter(|(name, _)| is_ours(name)).collect();
    ours.sort();
    let names = Names::all();
    for (name, text) in ours {
        let place = Place::Variable(name.clone());
        if let Some(path) = names.key_of(&name) {
            handle(path, &text, place, settings, places, problems);
        } else if let Some(path) = names.lists.iter().find(|path| is_in_tables(&name, path)) {
            let what = format!("{path} is a list of tables: only the file can set it");
            problems.push(Problem::new(place, what));
        } else if names.sections.iter().any(|section| begins_like(&name, section)) {
            let hint = meant(&name, names.variables());
            problems.push(Problem::new(place, format_args!("no such key{hint}")));
        }
    }
}

fn handle(
    path: &str,
    text: &str,
    place: Place,
    settings: &mut Settings,
    places: &mut Places,
    problems: &mut Vec<Problem>,
) {
    let Some((key, value)) = keys::find_mut(settings, path) else { return };
    let is_secret = key.rules.secret;
    if !value.read_text(text) {
        let shown = if is_secret { HIDDEN.to_owned() } else { format!("{text:?}") };
        problems.push(Problem::not_allowed(place, path, shown, key.allowed(value)));
        return;
    }
    // Other values, such as numbers and lists, are shown as they are understood.
    let is_text = value.show().is_some_and(|shown| shown.starts_with('"'));
    let written = (is_text && !is_secret).then(|| format!("{text:?}"));
    settings.from_variables.push(FromVariable {
        name: place.to_string(),
        key: path.to_owned(),
        instead_of: places.in_file(path),
    });
    places.set(path.to_owned(), place, written);
}

/// Whether the variable names the list of tables, or a member of one of its tables.
fn is_in_tables(name: &str, list: &str) -> bool {
    variable(list) == name || begins_like(name, list)
}

/// The variable by which an upgrade names its sockets is no key of a section.
fn is_ours(name: &str) -> bool {
    name.starts_with("WEIR_") && name != weir::UPGRADE_VARIABLE
}

fn begins_like(name: &str, path: &str) -> bool {
    let rest = name.strip_prefix(&variable(path)).and_then(|rest| rest.strip_prefix('_'));
    rest.is_some_and(|rest| !rest.starts_with("SERVICE_") && !rest.starts_with("PORT"))
}
