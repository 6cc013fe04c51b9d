//! The macro that defines a table of keys.

use std::fmt;

use super::Table;

/// Defines a table of keys: a struct with a default, whose fields are the keys.
///
/// A key is `name: Type = default, rule(…), …;` with its text as doc comment. Without a default it
/// has the default of its type. `in "…"` behind the name describes a list of such tables. The rules
/// are those of [`Rules`](crate::keys::Rules); `allowed` takes the arguments of `format!`. The
/// range of a time is in milliseconds. The table reads itself from any format that serde reads, and
/// hides its secrets in `Debug`.
///
/// ```
/// weir::config_table! {
///     /// Section `[door]`.
///     pub struct Door {
///         /// How many may pass at a time.
///         width: usize = 2, range(1..=8), unit("persons");
///         /// What opens it.
///         word: String, allowed("at least {} letters", 3), secret();
///     }
/// }
/// assert_eq!(Door::default().width, 2);
/// assert!(weir::keys::check("door", &Door { width: 9, ..Door::default() }).is_err());
/// ```
#[macro_export]
macro_rules! config_table {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $table:ident $(in $list:literal)? {
            $(
                $(#[doc = $doc:literal])*
                $name:ident: $type:ty $(= $default:expr)? $(, $rule:ident($($value:tt)*))*;
            )+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, PartialEq)]
        $visibility struct $table {
            $($(#[doc = $doc])* $visibility $name: $type,)+
        }

        impl Default for $table {
            fn default() -> Self {
                Self { $($name: $crate::config_table!(@default $($default)?),)+ }
            }
        }

        const _: () = {
            use $crate::keys::{Key, Raw, Rules, Table, Value};

            static KEYS: &[Key] = &[$(Key {
                name: stringify!($name),
                doc: &[$($doc),*],
                rules: Rules {
                    $($rule: $crate::config_table!(@$rule $($value)*),)*
                    ..Rules::NONE
                },
            }),+];

            impl Table for $table {
                fn entries(&self) -> Vec<(&'static Key, &dyn Value)> {
                    KEYS.iter().zip([$(&self.$name as &dyn Value),+]).collect()
                }

                fn entries_mut(&mut self) -> Vec<(&'static Key, &mut dyn Value)> {
                    KEYS.iter().zip([$(&mut self.$name as &mut dyn Value),+]).collect()
                }
            }

            impl Value for $table {
                fn kind(&self) -> String {
                    "a table".to_owned()
                }

                fn read(&mut self, _: &Raw) -> bool {
                    false
                }

                fn show(&self) -> Option<String> {
                    None
                }

                fn as_table(&self) -> Option<&dyn Table> {
                    Some(self)
                }

                fn as_table_mut(&mut self) -> Option<&mut dyn Table> {
                    Some(self)
                }
            }

            $(impl $crate::keys::Item for $table {
                fn list() -> String {
                    $list.to_owned()
                }

                fn parse(_: &str) -> Option<Self> {
                    None
                }

                fn text(&self) -> String {
                    String::new()
                }

                fn as_table(&self) -> Option<&dyn Table> {
                    Some(self)
                }

                fn row() -> Option<Box<dyn Table>> {
                    Some(Box::new(Self::default()))
                }

                fn push(list: &mut Vec<Self>) -> Option<&mut dyn Table> {
                    list.push(Self::default());
                    Some(list.last_mut()?)
                }
            })?

            impl std::fmt::Debug for $table {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    $crate::keys::debug(stringify!($table), self, f)
                }
            }

            impl<'de> $crate::keys::Deserialize<'de> for $table {
                fn deserialize<D: $crate::keys::Deserializer<'de>>(
                    input: D,
                ) -> Result<Self, D::Error> {
                    $crate::keys::deserialize(input)
                }
            }
        };
    };
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
    (@allowed $($format:tt)+) => { Some(|| format!($($format)+)) };
    (@range $range:expr) => { Some($range) };
    (@unit $unit:expr) => { $unit };
    (@reason $reason:expr) => { $reason };
    (@example $example:expr) => { $example };
    (@secret) => { true };
    (@needed) => { true };
    (@reload) => { true };
}

/// Writes all values of a table except secrets.
pub fn debug(name: &str, table: &dyn Table, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut out = f.debug_struct(name);
    for (key, value) in table.entries().into_iter().filter(|(key, _)| !key.rules.secret) {
        out.field(key.name, value);
    }
    out.finish_non_exhaustive()
}
