//! Packing answers for links: what producers did not compress is compressed on the way, and the same bytes
//! come out at the mirror. Only for who asks for it, and never so much at once that clients would notice.

use std::sync::Arc;

use meridian_protocol::messages::{FetchRequest, PACKING_ZSTD};
use meridian_protocol::records;

use super::read::Answer;
use crate::kafka::Front;

/// Answers that are packed at once. One more is sent as it is: clients want the processor too.
pub(in crate::kafka) const PACK_COUNT_MAX: usize = 2;
/// Smaller answers fit a packet or two, and are sent as they are.
const PACKED_SIZE_BYTES_MIN: usize = 1 << 10;

/// Packs answers, if that was asked for and is worth it.
pub(super) async fn packed(
    front: &Front,
    request: &FetchRequest,
    mut answers: Vec<Answer>,
) -> Vec<Answer> {
    let size_bytes: usize = answers.iter().map(|answer| answer.size_bytes).sum();
    if request.packing != PACKING_ZSTD || size_bytes < PACKED_SIZE_BYTES_MIN {
        return answers;
    }
    let Ok(permit) = Arc::clone(&front.packing).try_acquire_owned() else { return answers };
    let plain: Vec<_> = answers.iter().map(|answer| answer.response.records.clone()).collect();
    let packing = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let pack = |records: Option<_>| records.as_ref().and_then(records::pack);
        plain.into_iter().map(pack).collect::<Vec<_>>()
    });
    // A node that is going down packs nothing any more.
    for (answer, packed) in answers.iter_mut().zip(packing.await.unwrap_or_default()) {
        if packed.is_some() {
            answer.response.records = packed;
            answer.response.packing = PACKING_ZSTD;
        }
    }
    answers
}
