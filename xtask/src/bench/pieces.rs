//! What is measured: each piece is a command, and its result a file.

/// A command with a name.
pub(super) struct Piece {
    pub(super) name: String,
    pub(super) group: Group,
    pub(super) run: Run,
}

/// What a piece belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// Beside other servers.
    Peers,
    /// The figures of the articles that Weir answers.
    Articles,
    /// Costs against sizes.
    Scale,
    /// Promises with a ratio in them.
    Promises,
}

/// How a piece is run.
pub(super) enum Run {
    /// `weir-bench` with these words, and with lines for the configuration of Weir.
    Bench { words: String, settings: Option<String> },
    /// A script of `bench/`, with variables.
    Script { path: &'static str, variables: &'static str },
}

impl Piece {
    /// The command as a person would type it, without the options that all of them have.
    pub(super) fn command(&self) -> String {
        match &self.run {
            Run::Bench { words, settings } => {
                let settings = settings.as_deref().map_or(String::new(), |settings| {
                    format!(" # {}", settings.trim().replace('\n', "; "))
                });
                format!("weir-bench {words}{settings}")
            }
            Run::Script { path, variables } => format!("{variables} {path}"),
        }
    }
}

impl Group {
    pub(super) fn name(self) -> &'static str {
        match self {
            Group::Peers => "peers",
            Group::Articles => "articles",
            Group::Scale => "scale",
            Group::Promises => "promises",
        }
    }
}

/// All pieces. The quick ones take a moment each.
pub(super) fn all(is_quick: bool) -> Vec<Piece> {
    let mut all = peers(is_quick);
    all.extend(scale(is_quick));
    if !is_quick {
        all.extend(articles());
        all.extend(promises());
    }
    all
}

fn peers(is_quick: bool) -> Vec<Piece> {
    let sized = |full: &'static str, quick: &'static str| if is_quick { quick } else { full };
    let http = sized(
        "--warm-up-ms 500 --seconds 6 --rounds 5",
        "--connections 8 --warm-up-seconds 1 --warm-up-ms 50 --requests 200 --rounds 1",
    );
    let once = "--warm-up-ms 500 --seconds 4.5 --rounds 3";
    let idle = sized("--rounds 1", "--connections 50 --rounds 1 --settle 500ms");
    let hands = sized("--rounds 5", "--handshakes 20 --rounds 1");
    let broadcast = sized(
        "--seconds 20 --rounds 5",
        "--connections 50 --rate 20 --seconds 0.2 --rounds 1 --warm-up-seconds 0.1",
    );
    let echo = sized(
        "--seconds 10 --rounds 5",
        "--connections 50 --seconds 1 --rounds 1 --warm-up-seconds 1",
    );
    let udp = sized("--calls 300000 --rounds 5", "--calls 2000 --rounds 1");
    let proxy = sized(
        "--warm-up-ms 500 --seconds 10 --rounds 5",
        "--connections 8 --warm-up-ms 50 --requests 200 --rounds 1",
    );
    let settle = if is_quick { "" } else { " --settle 10s" };
    let compare = "http --compare --scripts bench/peers";
    let each = "--per-connection --tls --tls-version";
    let mut all = vec![
        ("idle", format!("peers idle {idle}")),
        ("idle-tls", format!("peers idle --tls --tls-version 1.3 {idle}{settle}")),
        ("broadcast", format!("peers broadcast {broadcast}")),
        ("echo", format!("peers echo {echo}")),
        ("http1", format!("{compare} {http}")),
        ("handshake-tls12", format!("peers handshake --tls --tls-version 1.2 {hands}")),
        ("udp", format!("peers udp {udp}")),
        ("proxy-1k", format!("proxy --size 1024 {proxy}")),
    ];
    if !is_quick {
        all.extend([
            ("http1-tls", format!("{compare} --tls {http}")),
            ("http2", format!("{compare} --h2 {http}")),
            ("https-full-tls12", format!("{compare} {each} 1.2 {COMMON12} {once}")),
            (
                "https-resumed-tls12",
                format!("{compare} {each} 1.2 {COMMON12} --tls-resume 1 {once}"),
            ),
            ("https-full-tls13", format!("{compare} {each} 1.3 {COMMON13} {once}")),
            // Netty with tcnative gives no tickets here.
            (
                "https-resumed-tls13",
                format!("http --compare {each} 1.3 {COMMON13} --tls-resume 1 {once}"),
            ),
            ("handshake-tls13", format!("peers handshake --tls --tls-version 1.3 {hands}")),
            ("proxy-64k", format!("proxy --size 65536 {proxy}")),
            ("proxy-http2", format!("proxy --size 1024 --h2 {proxy}")),
        ]);
    }
    let piece = |(name, words): (&str, String)| bench(name, Group::Peers, words, None);
    all.into_iter().map(piece).collect()
}

/// The servers would choose different suites.
const COMMON12: &str = "--tls-suite TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
const COMMON13: &str = "--tls-suite TLS13_AES_128_GCM_SHA256";

/// The sizes of the lines.
pub(super) const CONNECTIONS: [u32; 8] =
    [100, 1000, 2000, 5000, 10_000, 18_000, 100_000, 1_000_000];
/// More do not fit one table of descriptors here.
const ONE_TABLE_MAX: u32 = 18_000;
pub(super) const TOPICS: [u32; 6] = [0, 100, 1000, 10_000, 100_000, 1_000_000];
pub(super) const SIZES: [u32; 7] = [16, 64, 256, 1024, 4096, 16_384, 65_536];
pub(super) const SHARDS: [u32; 5] = [1, 2, 8, 64, 256];
pub(super) const CORES: [u32; 2] = [1, 2];

fn scale(is_quick: bool) -> Vec<Piece> {
    let load = if is_quick { "--seconds 0.2 --rounds 1" } else { "--seconds 4.5 --rounds 3" };
    let mut all = Vec::new();
    for connections in CONNECTIONS {
        // The same number of deliveries for each point: a hundred at least.
        let rate = (20_000.0 / f64::from(connections)).clamp(1.0, 50.0);
        let words = if connections <= ONE_TABLE_MAX {
            format!("broadcast --connections {connections} --rate {rate:.1} {load}")
        } else {
            format!("million --connections {connections} --size 256 --broadcasts 3")
        };
        all.push(bench(&format!("connections-{connections}"), Group::Scale, words, None));
    }
    for topics in TOPICS {
        let silent = format!("--silent-topics {topics} {load}");
        let words = format!("broadcast --connections 10000 --rate 2 {silent}");
        all.push(bench(&format!("topics-{topics}"), Group::Scale, words, None));
        let words = format!("broadcast --connections 1000 --rate 10 {silent}");
        all.push(bench(&format!("own-topics-{topics}"), Group::Scale, words, None));
        let words = format!("broadcast --connections 1000 --topics 1000 --rate 2 {silent}");
        all.push(bench(&format!("single-topics-{topics}"), Group::Scale, words, None));
    }
    for size in SIZES {
        let words = format!("broadcast --connections 1000 --rate 4 --size {size} {load}");
        let settings =
            "[limits]\nframe_bytes_max = 131072\n[connection]\nhigh_watermark_bytes = 262144\n";
        let settings = Some(settings.to_owned());
        all.push(bench(&format!("size-{size}"), Group::Scale, words, settings));
    }
    for shards in SHARDS {
        let words = format!("broadcast --connections 10000 --rate 2 {load}");
        let settings = format!("[threads]\nshards = {shards}\n[engine]\nown_descriptors = true\n");
        all.push(bench(&format!("shards-{shards}"), Group::Scale, words, Some(settings)));
    }
    for cores in CORES {
        let pins = match cores {
            1 => "--pin-server 0 --pin-client 1",
            _ => "--pin-server 0-1 --pin-client 0-1",
        };
        for shards in CORES {
            let settings = format!("[threads]\nshards = {shards}\n");
            let words = format!("broadcast --connections 10000 {load} {pins}");
            let name = format!("delivery-shards-{shards}-cores-{cores}");
            all.push(bench(&name, Group::Scale, words, Some(settings.clone())));
            let words = format!("handshake --tls --handshakes 1000 --rounds 3 {pins}");
            let name = format!("handshake-shards-{shards}-cores-{cores}");
            all.push(bench(&name, Group::Scale, words, Some(settings)));
        }
    }
    if is_quick {
        all.retain(|piece| ["connections-100", "size-16"].contains(&piece.name.as_str()));
    }
    all
}

fn articles() -> Vec<Piece> {
    let script = |name: &str, path, variables| Piece {
        name: name.to_owned(),
        group: Group::Articles,
        run: Run::Script { path, variables },
    };
    let pins = "--pin-server 0 --pin-client 1";
    let bench = |name, words: String| bench(name, Group::Articles, words, None);
    vec![
        script("ab", "bench/https-ab.sh", "REQUESTS=20000"),
        script("wrk", "bench/http-hello.sh", "ROUNDS=2 SECONDS_EACH=4"),
        script("access-log", "bench/access-log.sh", "ROUNDS=3 SECONDS_EACH=4"),
        script("link", "bench/http-link.sh", "SECONDS_EACH=8"),
        bench("activate", format!("activate --rounds 3 {pins}")),
        bench("udp-million", format!("udp --calls 1000000 --rounds 1 {pins}")),
        bench("million-half-tls", "million --connections 1000000 --tls-share 0.5".to_owned()),
        bench("echo-16384", "echo --connections 16384 --size 256 --seconds 10".to_owned()),
    ]
}

/// What SPECIFICATION.md names and no other piece measures.
fn promises() -> Vec<Piece> {
    let all = [
        ("delivery", "broadcast --connections 10000 --size 256 --rate 1 --seconds 20"),
        ("delivery-tls", "broadcast --connections 10000 --size 256 --rate 1 --seconds 20 --tls"),
        ("mixed", "broadcast --connections 10000 --transport mixed"),
        ("mixed-tls", "broadcast --connections 10000 --transport mixed --tls"),
        ("handshake-rsa", "handshake --tls --tls-key rsa"),
        ("priorities", "priorities --connections 10000 --high 100"),
        ("storm", "storm --tls --tls-resume 0.9"),
        ("stages", "stages"),
        ("churn", "churn --connections 10000 --churn-rate 2000 --seconds 120"),
        ("siege", "siege"),
    ];
    let piece = |(name, words): (&str, &str)| bench(name, Group::Promises, words.to_owned(), None);
    all.into_iter().map(piece).collect()
}

fn bench(name: &str, group: Group, words: String, settings: Option<String>) -> Piece {
    Piece { name: name.to_owned(), group, run: Run::Bench { words, settings } }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_the_quick_ones_known() {
        let full: BTreeSet<String> = all(false).into_iter().map(|piece| piece.name).collect();
        assert_eq!(full.len(), all(false).len());
        assert!(all(true).iter().all(|piece| full.contains(&piece.name)));
    }
}
