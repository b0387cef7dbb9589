//! A body that is made piece by piece on threads that serve no queries, as its client takes it.

use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use tokio::task::spawn_blocking;

/// What a body is made from.
pub(super) trait Pieces: Send + 'static {
    /// More bytes; none at the end. May take as long as copying a stream takes.
    fn next_piece(&mut self) -> Option<Bytes>;
}

/// A body of these pieces, one in memory at a time. `kept` goes with the body, at its end or when its client goes away.
pub(super) fn body(pieces: impl Pieces, kept: impl Send + 'static) -> Body {
    Body::from_stream(stream::unfold(Some((pieces, kept)), async |work| {
        let (mut pieces, kept) = work?;
        match spawn_blocking(move || (pieces.next_piece(), pieces)).await {
            Ok((piece, pieces)) => piece.map(|piece| (Ok(piece), Some((pieces, kept)))),
            // The connection is cut, so that a half is not taken for the whole.
            Err(error) => Some((Err(std::io::Error::other(error)), None)),
        }
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt;

    use super::*;

    struct Numbers(std::ops::Range<u8>);

    impl Pieces for Numbers {
        fn next_piece(&mut self) -> Option<Bytes> {
            let number = self.0.next()?;
            assert!(number < 9, "a fault of the maker");
            Some(Bytes::from(vec![number]))
        }
    }

    #[tokio::test]
    async fn pieces_come_in_order_and_what_is_kept_goes_with_the_body() {
        let kept = Arc::new(());
        let made = body(Numbers(1..4), Arc::clone(&kept));
        assert_eq!(made.collect().await.unwrap().to_bytes(), &[1, 2, 3][..]);
        assert_eq!(Arc::strong_count(&kept), 1);
        let dropped = body(Numbers(1..4), Arc::clone(&kept));
        drop(dropped);
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    #[tokio::test]
    async fn a_fault_on_the_way_is_no_end() {
        assert!(body(Numbers(8..12), ()).collect().await.is_err());
    }
}
