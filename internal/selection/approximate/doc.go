// Package approximate predicts what engines have cached from the prompts that were booked on
// them, as dynamo-kv-router 1.6.1 does. If engines publish no KV events, predictions replace
// their index; otherwise they complement it until the first event of a prompt comes. The blocks
// of a booked prompt are stored in an index like an engine's, under their rolling hashes, until
// their last reservation is too old.
package approximate
