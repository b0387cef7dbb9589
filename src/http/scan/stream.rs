//! Scans the body of a query by tokens as it arrives, piece by piece, so that a long body is never in memory as a whole.
//!
//! What was taken from the array can be written again from its numbers, since only two forms are taken (`elements`).
//! So whoever has to see the text after all, because the library refuses the rest of the body or because something
//! unusual stands in the array, gets every byte of it. A property test holds this for every way of cutting a body.

use super::Split;
use super::elements::{ELEMENT_BYTES_MAX, Gap, Next, next, take};
use super::text::array_of;

/// Pieces in which the array must have begun, and their length: looking for it begins anew with each.
const PIECES_BEFORE_ARRAY_MAX: usize = 4;
const BYTES_BEFORE_ARRAY_MAX: usize = 1 << 17;

/// Room made for numbers, at most, as a multiple of what has arrived: a claimed length alone costs next to nothing.
const ROOM_FACTOR: usize = 8;

/// Reads `token_ids` from pieces of a body.
#[derive(Debug)]
pub(crate) struct TokenScanner {
    state: State,
    /// Text outside of the array, with the bracket that opens it; all text when the scanner has given up.
    text: Vec<u8>,
    /// Where the inside of the array belongs in `text`.
    inside: usize,
    /// Tokens, four bytes little endian each.
    numbers: Vec<u8>,
    /// What stands between the elements, once two were seen.
    gap: Option<Gap>,
    /// An element of which the last piece had the beginning only.
    begun: Vec<u8>,
    /// Length of the body as its sender claims it, in bytes.
    claimed: usize,
    /// Bytes that have arrived.
    arrived: usize,
}

/// Where the scanner stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the array, in the piece with this number.
    Before(usize),
    /// Just inside the array.
    Opened,
    /// Where an element begins, or in the one of which `begun` is the beginning.
    Elements,
    /// Behind the array.
    After,
    /// Text is only collected.
    GivenUp,
}

impl TokenScanner {
    /// A scanner for a body of about this many bytes.
    pub(crate) fn new(claimed: usize) -> Self {
        Self {
            state: State::Before(0),
            text: Vec::new(),
            inside: 0,
            numbers: Vec::new(),
            gap: None,
            begun: Vec::new(),
            claimed,
            arrived: 0,
        }
    }

    /// Takes the next piece.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.arrived += piece.len();
        match self.state {
            State::Before(pieces) => self.before(piece, pieces),
            State::Opened => self.opened(piece),
            State::Elements => self.elements(piece),
            State::After | State::GivenUp => self.text.extend_from_slice(piece),
        }
    }

    /// Numbers and rest of the body, if it ended behind its array. The caller may still want the text of it.
    pub(crate) fn split(&mut self) -> Option<Split<Vec<u8>>> {
        (self.state == State::After)
            .then(|| Split { numbers: std::mem::take(&mut self.numbers), rest: std::mem::take(&mut self.text) })
    }

    /// Puts back what [`Self::split`] took.
    pub(crate) fn unsplit(&mut self, split: Split<Vec<u8>>) {
        (self.numbers, self.text) = (split.numbers, split.rest);
    }

    /// All text that was pushed, byte by byte.
    pub(crate) fn into_text(self) -> Vec<u8> {
        if self.numbers.is_empty() && self.begun.is_empty() {
            return self.text;
        }
        let gap = self.gap.map_or(&b","[..], Gap::as_bytes);
        let (before, after) = self.text.split_at(self.inside);
        let mut text = Vec::with_capacity(self.text.len() + self.numbers.len() * 2);
        text.extend_from_slice(before);
        for (nth, token) in self.numbers.as_chunks::<4>().0.iter().enumerate() {
            if nth > 0 {
                text.extend_from_slice(gap);
            }
            text.extend_from_slice(itoa::Buffer::new().format(u32::from_le_bytes(*token)).as_bytes());
        }
        if self.state == State::Elements && !self.numbers.is_empty() {
            text.extend_from_slice(gap);
        }
        text.extend_from_slice(&self.begun);
        text.extend_from_slice(after);
        text
    }

    fn before(&mut self, piece: &[u8], pieces: usize) {
        let seen = self.text.len();
        // The first piece is searched where it lies: it is the longest part of many bodies.
        let found = if seen == 0 {
            array_of(piece, b"token_ids")
        } else {
            self.text.extend_from_slice(piece);
            array_of(&self.text, b"token_ids")
        };
        let Some(bracket) = found else {
            if seen == 0 {
                self.text.extend_from_slice(piece);
            }
            let searched = pieces + 1 < PIECES_BEFORE_ARRAY_MAX && self.text.len() < BYTES_BEFORE_ARRAY_MAX;
            self.state = if searched { State::Before(pieces + 1) } else { State::GivenUp };
            return;
        };
        let inside = bracket + 1;
        if seen == 0 {
            self.text.extend_from_slice(&piece[..inside]);
        } else {
            self.text.truncate(inside);
        }
        (self.inside, self.state) = (inside, State::Opened);
        // What earlier pieces had was searched, so the bracket is in this one.
        self.opened(&piece[inside - seen..]);
    }

    fn opened(&mut self, piece: &[u8]) {
        match piece.first() {
            None => {}
            Some(b']') => self.after(piece),
            Some(_) => {
                self.state = State::Elements;
                self.elements(piece);
            }
        }
    }

    fn elements(&mut self, mut piece: &[u8]) {
        if !self.begun.is_empty() {
            let Some(rest) = self.over_the_border(piece) else {
                return;
            };
            piece = rest;
        }
        self.make_room(piece.len());
        let mut at = 0;
        loop {
            match next(&piece[at..], self.gap) {
                Next::Element { token, gap, end } => {
                    self.element(token, gap);
                    at = take(piece, at + end, gap, &mut self.numbers);
                }
                Next::Last { token, end } => {
                    self.numbers.extend_from_slice(&token.to_le_bytes());
                    return self.after(&piece[at + end - 1..]);
                }
                Next::Unfinished => return self.begun.extend_from_slice(&piece[at..]),
                Next::Odd => return self.give_up(&piece[at..]),
            }
        }
    }

    /// Finishes the element that the piece before had begun; the rest of this piece, if it goes on with elements.
    fn over_the_border<'a>(&mut self, piece: &'a [u8]) -> Option<&'a [u8]> {
        let mut joined = [0; 2 * ELEMENT_BYTES_MAX];
        let before = self.begun.len();
        let of_piece = piece.len().min(ELEMENT_BYTES_MAX);
        joined[..before].copy_from_slice(&self.begun);
        joined[before..before + of_piece].copy_from_slice(&piece[..of_piece]);
        match next(&joined[..before + of_piece], self.gap) {
            Next::Element { token, gap, end } => {
                self.begun.clear();
                self.element(token, gap);
                Some(&piece[end - before..])
            }
            Next::Last { token, end } => {
                self.begun.clear();
                self.numbers.extend_from_slice(&token.to_le_bytes());
                self.after(&piece[end - 1 - before..]);
                None
            }
            Next::Unfinished => {
                self.begun.extend_from_slice(piece);
                None
            }
            Next::Odd => {
                self.give_up(piece);
                None
            }
        }
    }

    fn element(&mut self, token: u32, gap: Gap) {
        self.numbers.extend_from_slice(&token.to_le_bytes());
        self.gap = Some(gap);
    }

    /// The array ends with the bracket that begins this piece.
    fn after(&mut self, piece: &[u8]) {
        self.state = State::After;
        self.text.extend_from_slice(piece);
    }

    fn give_up(&mut self, rest: &[u8]) {
        let text = std::mem::replace(self, Self::new(self.claimed)).into_text();
        (self.text, self.state) = (text, State::GivenUp);
        self.text.extend_from_slice(rest);
    }

    /// Room for the tokens of a piece. Few have less than three digits, so that they take no more room than their text;
    /// if they do, the buffer grows.
    fn make_room(&mut self, piece_bytes: usize) {
        if self.numbers.capacity() - self.numbers.len() < piece_bytes {
            let wanted = self.claimed.clamp(piece_bytes, self.arrived * ROOM_FACTOR);
            self.numbers.reserve(wanted.saturating_sub(self.numbers.len()).max(piece_bytes));
        }
    }
}
