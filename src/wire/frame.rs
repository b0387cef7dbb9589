//! Frames of a publisher and of its replay socket. Never looks into a payload.

use crate::event::SkipReason;
use crate::ids::Seq;

/// Sequence and payload of a PUB message of three frames `[topic, sequence, payload]`; the sequence is 8 bytes big
/// endian. The topic may be anything.
///
/// # Errors
/// `MalformedFrames` for any other shape.
pub fn live_message<'a>(frames: &[&'a [u8]]) -> Result<(Seq, &'a [u8]), SkipReason> {
    let &[_topic, seq, payload] = frames else {
        return Err(SkipReason::MalformedFrames);
    };
    Ok((sequence(seq)?, payload))
}

/// One answer of a replay ROUTER as a DEALER sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayAnswer<'a> {
    /// A kept batch.
    Batch {
        /// Its number.
        seq: Seq,
        /// Its payload, never empty.
        payload: &'a [u8],
    },
    /// The end marker: an empty payload, whatever its number.
    End,
}

/// Reads `["", sequence, payload]` or `["", topic, sequence, payload]`.
///
/// # Errors
/// `MalformedFrames` for any other shape: another count, a first frame that is not empty, a sequence that is not 8 bytes.
pub fn replay_answer<'a>(frames: &[&'a [u8]]) -> Result<ReplayAnswer<'a>, SkipReason> {
    let (&[delimiter, seq, payload] | &[delimiter, _, seq, payload]) = frames else {
        return Err(SkipReason::MalformedFrames);
    };
    if !delimiter.is_empty() {
        return Err(SkipReason::MalformedFrames);
    }
    let seq = sequence(seq)?;
    if payload.is_empty() { Ok(ReplayAnswer::End) } else { Ok(ReplayAnswer::Batch { seq, payload }) }
}

/// The two request frames: an empty one and the first number wanted, 8 bytes big endian.
#[must_use]
pub fn replay_request(from: Seq) -> [Vec<u8>; 2] {
    [Vec::new(), from.0.to_be_bytes().to_vec()]
}

fn sequence(frame: &[u8]) -> Result<Seq, SkipReason> {
    frame.try_into().map(|bytes| Seq(u64::from_be_bytes(bytes))).map_err(|_| SkipReason::MalformedFrames)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEVEN: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 7];

    #[test]
    fn f05_only_three_frames_with_eight_sequence_bytes_are_a_message() {
        for (frames, want) in [
            (&[b"kv" as &[u8], SEVEN, b"p"] as &[&[u8]], Ok((Seq(7), b"p" as &[u8]))),
            (&[b"", SEVEN, b""], Ok((Seq(7), b"" as &[u8]))),
            (&[b"", &[0xff; 8], b"p"], Ok((Seq(u64::MAX), b"p" as &[u8]))),
            (&[], Err(SkipReason::MalformedFrames)),
            (&[b"p"], Err(SkipReason::MalformedFrames)),
            (&[SEVEN, b"p"], Err(SkipReason::MalformedFrames)),
            (&[b"kv", &SEVEN[..1], b"p"], Err(SkipReason::MalformedFrames)),
            (&[b"kv", &[0; 9], b"p"], Err(SkipReason::MalformedFrames)),
            (&[b"kv", SEVEN, b"p", b"x"], Err(SkipReason::MalformedFrames)),
        ] {
            assert_eq!(live_message(frames), want, "{frames:?}");
        }
    }

    #[test]
    fn f06_any_topic_is_accepted() {
        for topic in ["", "kv-events", "kv@10.0.0.1:8000@org/model"] {
            assert_eq!(live_message(&[topic.as_bytes(), SEVEN, b"p"]), Ok((Seq(7), b"p" as &[u8])), "{topic}");
        }
    }

    #[test]
    fn replay_answers_have_three_or_four_frames_and_end_with_an_empty_payload() {
        let batch = Ok(ReplayAnswer::Batch { seq: Seq(7), payload: b"p" });
        let malformed = Err(SkipReason::MalformedFrames);
        for (frames, want) in [
            (&[b"" as &[u8], SEVEN, b"p"] as &[&[u8]], batch),
            (&[b"", b"topic", SEVEN, b"p"], batch),
            (&[b"", b"", SEVEN, b"p"], batch),
            (&[b"", &[0xff; 8], b""], Ok(ReplayAnswer::End)),
            (&[b"", b"", &[0xff; 8], b""], Ok(ReplayAnswer::End)),
            (&[b"", SEVEN, b""], Ok(ReplayAnswer::End)),
            (&[b"", SEVEN], malformed),
            (&[b"x", SEVEN, b"p"], malformed),
            (&[b"", &SEVEN[1..], b"p"], malformed),
            (&[b"", SEVEN, b"topic", b"p"], malformed),
            (&[b"", b"", SEVEN, b"p", b""], malformed),
            (&[], malformed),
        ] {
            assert_eq!(replay_answer(frames), want, "{frames:?}");
        }
    }

    #[test]
    fn a_replay_request_is_an_empty_frame_and_a_big_endian_number() {
        assert_eq!(replay_request(Seq(258)), [vec![], vec![0, 0, 0, 0, 0, 0, 1, 2]]);
    }
}
