// Package keyhash hashes numbers for tables that outsiders fill.
//
// Engines and callers choose their block hashes, and can find tokens for most values of XXH3,
// because it can be inverted. They must not be able to choose numbers that collide in a table,
// where each lookup would have to pass all of them. So a [Key] is secret and random: without
// it, whether two given numbers collide is as good as random. The order of a table differs from
// process to process; data that leaves the process must not depend on it.
package keyhash
