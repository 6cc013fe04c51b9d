//! What a block from a shard's pool costs beside one from the allocator, by size.
//!
//! `cargo bench -p weir-engine --bench pool`
//!
//! Either side takes a block, copies the bytes into it and gives it back: alone, and with some blocks out at a time as
//! when many frames arrive in pieces. The allocator is the gateway's, jemalloc with its defaults.

use std::collections::VecDeque;
use std::hint::black_box;
use std::io::{self, Write};
use std::time::Instant;

use weir_engine::sim::Blocks;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Bytes of a block; the pool's classes are 256 bytes, and four times as much each.
const SIZES: [usize; 11] =
    [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16 * 1024, 32 * 1024, 64 * 1024];

/// Blocks that are out at a time.
const OUT: [usize; 2] = [1, 4];

/// Series of which the median counts, and pairs of taking and giving in each.
const SERIES: usize = 15;
const PAIRS: u32 = 20_000;

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    writeln!(out, "kernel {}, {SERIES} series of {PAIRS} pairs, medians", kernel.trim())?;
    writeln!(
        out,
        "{:>8} {:>4} {:>10} {:>14} {:>6}",
        "bytes", "out", "pool, ns", "allocator, ns", "ratio"
    )?;
    for count in OUT {
        for size in SIZES {
            let bytes = vec![7; size];
            let (pool, allocator) = compare(&bytes, count);
            let ratio = pool / allocator;
            writeln!(out, "{size:>8} {count:>4} {pool:>10.1} {allocator:>14.1} {ratio:>6.2}")?;
        }
    }
    Ok(())
}

/// Nanoseconds for taking and giving a block back: from the pool, and from the allocator. The series alternate, so that
/// a disturbance meets both.
fn compare(bytes: &[u8], count: usize) -> (f64, f64) {
    let mut blocks = Blocks::default();
    let mut pool = Vec::with_capacity(SERIES);
    let mut allocator = Vec::with_capacity(SERIES);
    for _ in 0..SERIES {
        let mut taken = VecDeque::with_capacity(count + 1);
        pool.push(time(|| {
            taken.push_back(blocks.take(black_box(bytes)));
            if taken.len() == count
                && let Some(block) = taken.pop_front()
            {
                black_box(block.filled());
                blocks.give(block);
            }
        }));
        let mut taken: VecDeque<Box<[u8]>> = VecDeque::with_capacity(count + 1);
        allocator.push(time(|| {
            taken.push_back(black_box(bytes).into());
            if taken.len() == count {
                black_box(taken.pop_front());
            }
        }));
    }
    (median(pool), median(allocator))
}

/// Nanoseconds a pair.
fn time(mut pair: impl FnMut()) -> f64 {
    let began = now();
    for _ in 0..PAIRS {
        pair();
    }
    began.elapsed().as_secs_f64() * 1e9 / f64::from(PAIRS)
}

#[expect(clippy::disallowed_methods, reason = "a bench measures time")]
fn now() -> Instant {
    Instant::now()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
