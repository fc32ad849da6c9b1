// Package quota enforces limits of tenants: requests and tokens per minute, quotas per day and
// month, concurrent requests, and a share of the memory for requests.
//
// Read ledger.go first. A Ledger has an Account for each name of an API key, which a Keyring finds
// by the key. Account.Admit admits a request as a Reservation, which reserves tokens, grows with
// the answer, settles the actual usage and is released. For a request over a limit, it returns a
// Denial (denial.go). A MemoryLedger (memory.go) accounts for bytes, with a MemoryUse per user of
// memory. bucket.go is the token bucket of the limits per minute.
//
// Times are durations since the balancer's start, except for quotas, which follow the UTC calendar.
package quota
