// Package quota enforces limits of API keys, users and tenants: requests and tokens per minute,
// quotas and budgets per day and month, concurrent requests; and for each tenant a share of the memory
// for requests.
//
// Read ledger.go first. A Ledger has an Account for each name of an API key, which a Keyring finds by
// the key, for each user (users.go) and for each tenant with limits (tenants.go). Account.Admit
// admits a request as a Reservation, which reserves tokens, grows with the answer, settles the actual
// usage and is released. For a request over a limit, it returns a Denial (denial.go). A MemoryLedger
// (memory.go) accounts for bytes, with a MemoryUse for each request or buffer. bucket.go is the token
// bucket of the limits per minute.
//
// External providers have accounts too, by their names, in a Ledger of their own (lbd/proxy/provider.go).
//
// Times are durations since the balancer's start, except for quotas, which follow the UTC calendar.
package quota
