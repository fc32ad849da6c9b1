// Package quota says what a tenant may have: requests and tokens a minute, quotas of days and
// months, requests at once, and a share of the memory that requests take.
//
// Read ledger.go first. A Ledger has an Account for each name of an API key, which a Keyring
// finds by the key. Account.Admit lets a request in as a Reservation, which reserves tokens,
// grows with the answer, settles what was really used and is released. What is over a limit
// is a Denial (denial.go). Memory (memory.go) accounts for bytes: each thing that takes some
// has a MemoryUse. bucket.go is the token bucket of the limits a minute.
//
// Times are durations since the balancer's start, but for quotas, which go by UTC's calendar.
package quota
