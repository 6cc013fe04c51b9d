//! What sealing and opening a TLS record costs with a key schedule made for each call, beside one that is kept.
//!
//! `cargo bench -p weir-engine --bench records`
//!
//! Both run on the same library of C, one record a call, with one connection and with so many that they do not stay in
//! the caches. What is kept is a key of aws-lc-rs, which lies on the heap; in TLS 1.3 opening also derives the key from
//! its secret, which the kept one is spared.

use std::hint::black_box;
use std::io::{self, IoSlice, Write};
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use weir_engine::tls::{Cipher, Session};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const SIZES: [usize; 4] = [64, 256, 1024, 16 * 1024];

/// Connections that take turns.
const CONNECTIONS: [usize; 2] = [1, 50_000];

/// Series of which the median counts, and records in each.
const SERIES: usize = 15;
const RECORDS: usize = 2000;

const CIPHERS: [(Cipher, &aead::Algorithm, usize, usize); 3] = [
    (Cipher::Aes128Gcm, &aead::AES_128_GCM, 16, 32),
    (Cipher::Aes256Gcm, &aead::AES_256_GCM, 32, 48),
    (Cipher::ChaCha20Poly1305, &aead::CHACHA20_POLY1305, 32, 32),
];

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    writeln!(out, "kernel {}, {SERIES} series of {RECORDS} records, medians, ns", kernel.trim())?;
    writeln!(
        out,
        "{:<17} {:>6} {:>6} {:>8} {:>8} {:>6} {:>8} {:>8} {:>6}",
        "cipher", "bytes", "conns", "seal", "kept", "ratio", "open", "kept", "ratio"
    )?;
    for (cipher, algorithm, key_bytes, secret_bytes) in CIPHERS {
        for count in CONNECTIONS {
            let mut bench = Bench::new(cipher, algorithm, key_bytes, secret_bytes, count);
            for bytes in SIZES {
                let [seal, kept_seal, open, kept_open] = bench.measure(bytes);
                writeln!(
                    out,
                    "{:<17} {bytes:>6} {count:>6} {seal:>8.0} {kept_seal:>8.0} {:>6.2} {open:>8.0} {kept_open:>8.0} {:>6.2}",
                    format!("{cipher:?}"),
                    seal / kept_seal,
                    open / kept_open
                )?;
            }
        }
    }
    Ok(())
}

/// Connections, each as a session, its peer, and a key that is kept.
struct Bench {
    all: Vec<(Session, Session, LessSafeKey)>,
    next: usize,
}

impl Bench {
    fn new(
        cipher: Cipher,
        algorithm: &'static aead::Algorithm,
        key_bytes: usize,
        secret_bytes: usize,
        count: usize,
    ) -> Bench {
        let (ours, theirs) = ([1; 48], [2; 48]);
        let (ours, theirs) = ((&ours[..secret_bytes], 0), (&theirs[..secret_bytes], 0));
        let session = |a, b| Session::tls13(cipher, a, b).expect("secrets of the right length");
        let key = || UnboundKey::new(algorithm, &[1; 32][..key_bytes]).expect("the right length");
        let all = (0..count)
            .map(|_| (session(ours, theirs), session(theirs, ours), LessSafeKey::new(key())));
        Bench { all: all.collect(), next: 0 }
    }

    fn turn(&mut self) -> &mut (Session, Session, LessSafeKey) {
        // A step that no prefetcher follows.
        self.next = (self.next + 7919) % self.all.len();
        &mut self.all[self.next]
    }

    /// Nanoseconds to seal a record and to open one, ours and kept. The four take turns, so that a disturbance meets
    /// all.
    fn measure(&mut self, bytes: usize) -> [f64; 4] {
        let text = vec![7; bytes];
        let mut times = [const { Vec::new() }; 4];
        for _ in 0..SERIES {
            let mut spent = [Duration::ZERO; 4];
            // Opening spoils its input, so records are made in rounds.
            for _ in 0..RECORDS / ROUND {
                let round = self.round(&text);
                for (spent, time) in spent.iter_mut().zip(round) {
                    *spent += time;
                }
            }
            for (times, spent) in times.iter_mut().zip(spent) {
                times.push(spent.as_secs_f64() * 1e9 / RECORDS as f64);
            }
        }
        times.map(median)
    }

    fn round(&mut self, text: &[u8]) -> [Duration; 4] {
        let mut sealed = room(text.len());
        let first = self.next;
        let seal = time(&mut sealed, |out| {
            let sealed = self.turn().0.seal(&[IoSlice::new(black_box(text))], out);
            assert_eq!(sealed, Ok(text.len()));
        });
        self.next = first;
        let open = time(&mut sealed, |record| {
            assert!(self.turn().1.open(black_box(record)).is_ok());
        });
        let mut sealed = room(text.len());
        self.next = first;
        let kept_seal = time(&mut sealed, |out| {
            out.extend_from_slice(&HEADER);
            out.extend_from_slice(black_box(text));
            let key = &self.turn().2;
            let tag = key.seal_in_place_separate_tag(nonce(), Aad::from(HEADER), &mut out[5..]);
            out.extend_from_slice(tag.expect("a short text").as_ref());
        });
        self.next = first;
        let kept_open = time(&mut sealed, |record| {
            let key = &self.turn().2;
            let opened = key.open_in_place(nonce(), Aad::from(HEADER), black_box(&mut record[5..]));
            assert!(opened.is_ok());
            record.copy_within(5.., 0);
        });
        [seal, kept_seal, open, kept_open]
    }
}

/// For as many records as there are in a round, each with room for its header and tag.
fn room(bytes: usize) -> Vec<Vec<u8>> {
    (0..ROUND).map(|_| Vec::with_capacity(bytes + 100)).collect()
}

/// What `work` takes for all of them.
fn time(records: &mut [Vec<u8>], mut work: impl FnMut(&mut Vec<u8>)) -> Duration {
    let began = now();
    records.iter_mut().for_each(&mut work);
    began.elapsed()
}

/// A bench may repeat what nobody else may.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([3; 12])
}

#[expect(clippy::disallowed_methods, reason = "a bench measures time")]
fn now() -> Instant {
    Instant::now()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

const HEADER: [u8; 5] = [23, 3, 3, 1, 0];

/// Records between two looks at the clock.
const ROUND: usize = 100;
