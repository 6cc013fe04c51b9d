//! TLS records as the fuzzer demands them: its corpus, every cut of it, and random scripts.

use std::fs;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;

#[path = "../../../fuzz/src/tls.rs"]
pub mod tls;

#[test]
fn the_corpus_of_the_fuzz_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/tls_records");
    let mut inputs = 0;
    for entry in fs::read_dir(corpus).expect("a corpus") {
        let path = entry.expect("a readable corpus").path();
        println!("{}", path.display());
        let input = fs::read(&path).expect("a readable input");
        tls::records(&input);
        for end in 0..input.len().min(64) {
            tls::records(&input[..end]);
        }
        inputs += 1;
    }
    assert!(inputs > 0, "the corpus is empty");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_scripts(kind in any::<u8>(), cut in any::<u8>(), records in vec(record(), 0..40)) {
        tls::records(&[vec![kind, cut], records.concat()].concat());
    }
}

/// A record of a script, more often than not one that a peer might send.
fn record() -> impl Strategy<Value = Vec<u8>> {
    let update = (0..6_u8).prop_map(|last| vec![1, 22, 0, 5, 24, 0, 0, 1, last / 2]);
    let alert = (1..3_u8, any::<u8>()).prop_map(|(level, what)| vec![0, 21, 0, 2, level, what]);
    let data = (0..8_u8, 20..24_u8, 0..3_u8, vec(any::<u8>(), 0..40)).prop_map(
        |(flags, kind, padding, content)| {
            let bytes = u8::try_from(content.len()).expect("short");
            [vec![flags & 5, kind, padding, bytes], content].concat()
        },
    );
    let honest = vec(any::<u8>(), 1..40).prop_map(|content| {
        let bytes = u8::try_from(content.len()).expect("short");
        [vec![0, 23, 0, bytes], content].concat()
    });
    prop_oneof![8 => honest, 3 => update, 1 => alert, 1 => data]
}
