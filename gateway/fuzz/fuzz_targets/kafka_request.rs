//! A request from a client we do not trust. Run: `cargo +nightly fuzz run kafka_request`.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use meridian_protocol::Request;
use meridian_protocol::frame::decode_request;
use meridian_protocol::records::Batch;

fuzz_target!(|data: &[u8]| {
    let Ok((header, request)) = decode_request(Bytes::copy_from_slice(data)) else { return };
    assert_eq!(header.api, request.api());
    if let Request::Produce(request) = request {
        for partition in request.topic_data.into_iter().flat_map(|topic| topic.partition_data) {
            let _ = Batch::produced(partition.records);
        }
    }
});
