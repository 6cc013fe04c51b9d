//! Enums whose variants have names: one definition gives the variants, their names, their codes and
//! the list of all.

/// Defines an enum whose variants each have a name, and optionally a code.
///
/// The enum gets `ALL`, with every variant in order, and `name`. With codes it gets `code` too.
///
/// ```
/// weir_wire::named_enum! {
///     /// A side of the road.
///     #[derive(Debug, Clone, Copy, PartialEq)]
///     pub enum Side {
///         /// Where the heart is.
///         Left = "left",
///         /// The other one.
///         Right = "right",
///     }
/// }
/// assert_eq!(Side::ALL.map(Side::name), ["left", "right"]);
/// ```
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $enum:ident {
            $($(#[$doc:meta])* $variant:ident = $name:literal),+ $(,)?
        }
    ) => {
        $(#[$attribute])*
        $visibility enum $enum {
            $($(#[$doc])* $variant),+
        }

        impl $enum {
            /// Every variant, in order.
            $visibility const ALL: [$enum; [$($name),+].len()] = [$($enum::$variant),+];

            /// The variant's name, for metrics, logs, configuration and messages.
            $visibility const fn name(self) -> &'static str {
                match self {
                    $($enum::$variant => $name),+
                }
            }
        }
    };
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $enum:ident {
            $($(#[$doc:meta])* $variant:ident = ($name:literal, $code:literal)),+ $(,)?
        }
    ) => {
        $crate::named_enum! {
            $(#[$attribute])*
            $visibility enum $enum {
                $($(#[$doc])* $variant = $name),+
            }
        }

        impl $enum {
            /// The variant's code on the wire.
            $visibility const fn code(self) -> u16 {
                match self {
                    $($enum::$variant => $code),+
                }
            }
        }
    };
}
