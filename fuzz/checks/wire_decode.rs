//! What must hold for any payload of an engine; shared by the fuzz target and a property test.

use kvindexer::event::{Batch, Event};
use kvindexer::ids::BlockSize;
use kvindexer::wire::{DecodeContext, decode, decode_by_library};

/// Never panics; the fast path and the library read alike; what an earlier payload left in the batch does not matter; every
/// range lies inside its arena; bytes behind a batch do not matter.
///
/// The first byte chooses the block size of the index.
pub(crate) fn check(data: &[u8]) {
    let Some((&size, payload)) = data.split_first() else { return };
    let block_size = BlockSize::new(u32::from(size % 32) + 1).expect("at least 1");
    let context = DecodeContext { block_size, default_lora: (size > 127).then_some(9) };
    let (mut fast, mut slow) = (Batch::default(), Batch::default());
    let decoded = decode(payload, context, &mut fast);
    assert_eq!(decoded, decode_by_library(payload, context, &mut slow));
    assert_eq!(fast, slow);
    check_ranges(&fast);
    if decoded.is_ok() {
        let longer = [payload, b"\xc1"].concat();
        assert_eq!(decode(&longer, context, &mut slow), Ok(()));
        assert_eq!(fast, slow);
    }
}

fn check_ranges(batch: &Batch) {
    for event in &batch.events {
        match event {
            Event::Stored(stored) => {
                let hashes = batch.hashes_of(&stored.hashes).len();
                assert!(batch.extras_of(&stored.extras).iter().all(|extra| (extra.block as usize) < hashes));
                let tokens = batch.token_bytes_of(&stored.token_bytes).len() / 4;
                assert!(batch.locals_of(&stored.locals).len() <= tokens);
            }
            Event::Removed(removed) => drop(batch.hashes_of(&removed.hashes)),
            Event::Cleared | Event::Ignored(_) | Event::Skipped(_) => {}
        }
    }
}
