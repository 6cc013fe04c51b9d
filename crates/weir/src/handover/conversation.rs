//! What the two processes tell each other after the decision, as long as both are there.
//!
//! A word goes over the link in pieces. A thread sends, another one hears: a process that stands
//! still keeps no task of the other one waiting but those that have something to tell.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use weir_engine::Nanos;
use weir_wire::ProstMessage as _;
use weir_wire::handover::v1;
use weir_wire::handover::v1::link_message::Kind as Message;
use weir_wire::handover::v1::link_word::Kind as Word;

use super::link::{Heard, Link};

/// One end of the conversation. It ends with the last copy of this value, and when the other process
/// ends it.
#[derive(Debug, Clone)]
pub(crate) struct Conversation {
    words: mpsc::Sender<Said>,
    is_over: watch::Receiver<bool>,
}

/// A word on its way.
#[derive(Debug)]
struct Said {
    word: Word,
    /// Is told when the other process will hear the word, even if this one ends.
    sent: Option<oneshot::Sender<()>>,
}

impl Conversation {
    /// Begins it after the decision. `hear` gets what the other process tells, on a thread of its
    /// own.
    ///
    /// Errors: the threads do not start. Then the other process sees the end.
    pub(crate) fn begin(
        link: Link,
        hear: impl FnMut(Word) + Send + 'static,
    ) -> io::Result<Conversation> {
        let link = Arc::new(link);
        let (words, told) = mpsc::channel(WORDS_MAX);
        let (over, is_over) = watch::channel(false);
        let hearing = Arc::clone(&link);
        thread::Builder::new().name("weir-hears".to_owned()).spawn(move || {
            listen(&hearing, hear);
            hearing.end();
            over.send_replace(true);
        })?;
        let speaking = Arc::clone(&link);
        let speaks = thread::Builder::new().name("weir-tells".to_owned()).spawn(move || {
            speak(&speaking, told);
            speaking.end();
        });
        match speaks {
            Ok(_) => Ok(Conversation { words, is_over }),
            Err(error) => {
                link.end();
                Err(error)
            }
        }
    }

    /// Tells the other process something, and waits for room. Nobody hears it if the conversation is
    /// over.
    pub(crate) async fn tell(&self, word: Word) {
        // The sender's thread has ended.
        let _ = self.words.send(Said { word, sent: None }).await;
    }

    /// The same, and waits until the other process will hear it, even if this one ends. `false`: it
    /// will not.
    pub(crate) async fn tell_surely(&self, word: Word) -> bool {
        let (sent, is_sent) = oneshot::channel();
        let said = Said { word, sent: Some(sent) };
        self.words.send(said).await.is_ok() && is_sent.await.is_ok()
    }

    /// Waits until the other process has ended it.
    pub(crate) async fn over(&self) {
        let mut is_over = self.is_over.clone();
        // A thread that has failed hears nothing more either.
        let _ = is_over.wait_for(|is_over| *is_over).await;
    }
}

fn speak(link: &Link, mut words: mpsc::Receiver<Said>) {
    while let Some(Said { word, sent }) = words.blocking_recv() {
        let bytes = v1::LinkWord { kind: Some(word) }.encode_to_vec();
        let mut pieces = bytes.chunks(PIECE_BYTES).peekable();
        while let Some(piece) = pieces.next() {
            let piece = v1::LinkPiece { bytes: piece.to_vec(), has_more: pieces.peek().is_some() };
            let until = Nanos::now().after(PATIENCE);
            if link.send_quietly(Message::Piece(piece), until).is_err() {
                return;
            }
        }
        if let Some(sent) = sent {
            // Whoever has said it may have gone.
            let _ = sent.send(());
        }
    }
}

fn listen(link: &Link, mut hear: impl FnMut(Word)) {
    let mut word = Vec::new();
    loop {
        // Anything else is a mistake of the other program, and ends the conversation too.
        let Ok(Heard::Message(Message::Piece(piece))) = link.hear(Nanos(u64::MAX)) else { return };
        if word.len() + piece.bytes.len() > WORD_BYTES_MAX {
            return;
        }
        word.extend(piece.bytes);
        if piece.has_more {
            continue;
        }
        match v1::LinkWord::decode(&*word).map(|word| word.kind) {
            Ok(Some(kind)) => hear(kind),
            // A newer program tells more.
            Ok(None) => {}
            Err(_) => return,
        }
        word = Vec::new();
    }
}

/// What waits to be sent.
const WORDS_MAX: usize = 1024;
/// A packet has some bytes more.
const PIECE_BYTES: usize = 32 * 1024;
/// More than any frame of a connection.
const WORD_BYTES_MAX: usize = 64 << 20;
/// A process that hears nothing for so long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, sync_channel};

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn begin(link: Link) -> (Conversation, Receiver<Word>) {
        let (heard, hears) = sync_channel(64);
        let hear = move |word| heard.send(word).unwrap();
        (Conversation::begin(link, hear).unwrap(), hears)
    }

    fn word(answer: Vec<u8>) -> Word {
        let answer = Some(answer);
        Word::Call(v1::LinkCall { conn: 7, id: 3, is_of_device: true, answer })
    }

    #[tokio::test]
    async fn words_of_any_length_arrive_in_their_order_on_both_sides() {
        let (one, other) = Link::pair().unwrap();
        let ((one, hears), (other, also_hears)) = (begin(one), begin(other));
        for length in [0, 10, PIECE_BYTES, 1_000_000] {
            one.tell(word(vec![1; length])).await;
            other.tell(word(vec![2; length])).await;
        }
        for length in [0, 10, PIECE_BYTES, 1_000_000] {
            assert_eq!(also_hears.recv_timeout(SOON).unwrap(), word(vec![1; length]));
            assert_eq!(hears.recv_timeout(SOON).unwrap(), word(vec![2; length]));
        }
        assert!(one.tell_surely(word(vec![3])).await);
        drop(one);
        assert_eq!(also_hears.recv_timeout(SOON).unwrap(), word(vec![3]));
        other.over().await;
        other.tell(word(Vec::new())).await;
        assert!(!other.tell_surely(word(Vec::new())).await);
    }

    #[tokio::test]
    async fn a_word_that_is_not_one_ends_it() {
        let (one, other) = Link::pair().unwrap();
        let (one, hears) = begin(one);
        let piece = v1::LinkPiece { bytes: vec![0xff; 9], has_more: false };
        other.send_quietly(Message::Piece(piece), Nanos(u64::MAX)).unwrap();
        one.over().await;
        assert!(hears.recv_timeout(SOON).is_err());
    }
}
