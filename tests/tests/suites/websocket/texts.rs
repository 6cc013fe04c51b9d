//! Bytes that are UTF-8 or nearly so, by the rules of RFC 3629.

/// Greek, then half a surrogate pair, then more.
pub(crate) const BROKEN: &[u8] = b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited";
/// Greek, then a character beyond the last one, then more. Its second byte, the 13th, makes it wrong.
pub(crate) const BEYOND: &[u8] =
    b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xf4\x90\x80\x80edited";

/// The lists of the suite's sections 6.5 to 6.23, each with what its members have in common.
pub(crate) fn all() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let mut lists = boundaries();
    lists.extend(broken_sequences());
    lists.extend(wrong_code_points());
    lists
}

fn boundaries() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let greek = "κ\u{1f79}σμε".as_bytes();
    let among = |text: &str| format!("hello{text}world").into_bytes();
    vec![
        (
            "characters of one to four bytes",
            vec![among("$"), among("¢"), among("€"), among("\u{24b62}"), greek.to_vec()],
        ),
        ("the beginnings of a text", (1..=greek.len()).map(|end| greek[..end].to_vec()).collect()),
        ("the first character of each length", of_chars(&['\0', '\u{80}', '\u{800}', '\u{10000}'])),
        ("the first of five and six bytes", vec![long(0xf8, 0x88, 5), long(0xfc, 0x84, 6)]),
        (
            "the last character of each length",
            of_chars(&['\u{7f}', '\u{7ff}', '\u{ffff}', char::MAX]),
        ),
        ("the last of four to six bytes", vec![full(0xf7, 4), full(0xfb, 5), full(0xfd, 6)]),
        ("about the surrogates, and the last one", {
            let mut list = of_chars(&['\u{d7ff}', '\u{e000}', '\u{fffd}', char::MAX]);
            list.push(vec![0xf4, 0x90, 0x80, 0x80]);
            list
        }),
    ]
}

fn broken_sequences() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let mut continuations: Vec<Vec<u8>> = vec![vec![0x80], vec![0xbf]];
    continuations
        .extend((2..=6).map(|count| [0x80, 0xbf].into_iter().cycle().take(count).collect()));
    continuations.push((0x80..0xbf).collect());
    let starts = [0xc0..0xdf, 0xe0..0xef, 0xf0..0xf7, 0xf8..0xfb, 0xfc..0xfd];
    let starts =
        starts.map(|range: std::ops::Range<u8>| range.flat_map(|byte| [byte, b' ']).collect());
    let cut = |mut whole: Vec<u8>| {
        whole.pop();
        whole
    };
    let lengths =
        [(0xc0, 0xdf, 2), (0xe0, 0xef, 3), (0xf0, 0xf7, 4), (0xf8, 0xfb, 5), (0xfc, 0xfd, 6)];
    let incomplete: Vec<Vec<u8>> = lengths
        .iter()
        .map(|(lowest, _, bytes)| cut(long(*lowest, 0x80, *bytes)))
        .chain(lengths.iter().map(|(_, highest, bytes)| cut(full(*highest, *bytes))))
        .collect();
    let joined = vec![incomplete.concat()];
    vec![
        ("continuations of nothing", continuations),
        ("beginnings without continuations", starts.to_vec()),
        ("the last continuation missing", incomplete),
        ("the same in a row", joined),
        ("bytes that are never there", vec![vec![0xfe], vec![0xff], vec![0xfe, 0xfe, 0xff, 0xff]]),
    ]
}

fn wrong_code_points() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let slash = |first, bytes| {
        let mut overlong = long(first, 0x80, bytes);
        overlong[bytes - 1] = 0xaf;
        overlong
    };
    let firsts = [(0xc0, 2), (0xe0, 3), (0xf0, 4), (0xf8, 5), (0xfc, 6)];
    let longest = [
        vec![0xc1, 0xbf],
        vec![0xe0, 0x9f, 0xbf],
        vec![0xf0, 0x8f, 0xbf, 0xbf],
        vec![0xf8, 0x87, 0xbf, 0xbf, 0xbf],
        vec![0xfc, 0x83, 0xbf, 0xbf, 0xbf, 0xbf],
    ];
    let high = [[0xed, 0xa0, 0x80], [0xed, 0xad, 0xbf], [0xed, 0xae, 0x80], [0xed, 0xaf, 0xbf]];
    let low = [[0xed, 0xb0, 0x80], [0xed, 0xbf, 0xbf]];
    let single = high.iter().chain([&low[0], &[0xed, 0xbe, 0x80], &low[1]]);
    let pairs = high.iter().flat_map(|high| low.iter().map(move |low| [*high, *low].concat()));
    // The last two of each plane but the first.
    let mut not_characters = of_chars(&['\u{fffe}', '\u{ffff}']);
    for plane in 1..=0x10 {
        for last in [0xfffe, 0xffff] {
            let character = char::from_u32((plane << 16) | last).expect("no surrogate");
            not_characters.extend(of_chars(&[character]));
        }
    }
    let specials: Vec<char> = ('\u{fff9}'..='\u{ffff}').collect();
    vec![
        ("a slash in too many bytes", firsts.map(|(first, bytes)| slash(first, bytes)).to_vec()),
        ("the longest of too many bytes", longest.to_vec()),
        ("zero in too many bytes", firsts.map(|(first, bytes)| long(first, 0x80, bytes)).to_vec()),
        ("half a surrogate pair", single.map(|bytes| bytes.to_vec()).collect()),
        ("a surrogate pair", pairs.collect()),
        ("code points that are no characters", not_characters),
        ("special characters", of_chars(&specials)),
    ]
}

fn of_chars(characters: &[char]) -> Vec<Vec<u8>> {
    characters.iter().map(|character| character.to_string().into_bytes()).collect()
}

/// First and second byte, and continuations of zeros up to this length.
fn long(first: u8, second: u8, bytes: usize) -> Vec<u8> {
    let mut sequence = vec![0x80; bytes];
    (sequence[0], sequence[1]) = (first, second);
    sequence
}

/// First byte, and continuations of ones up to this length.
fn full(first: u8, bytes: usize) -> Vec<u8> {
    let mut sequence = vec![0xbf; bytes];
    sequence[0] = first;
    sequence
}
