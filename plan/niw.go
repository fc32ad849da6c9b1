package plan

import "time"

// NIW is a queue manager for deferred work (SageServe section 6.2): how many
// deferred requests an endpoint that tells its utilisation gets, and from which
// age on they go among interactive ones. What is due after NIWDeadline is in time
// with either of SageNIW and AutoNIW.
type NIW struct {
	// OneBelow and TwoBelow are the effective memory utilisations, 0..1, below which
	// one and two requests are sent.
	OneBelow, TwoBelow float64
	// UrgentAfter is the age from which a request is sent whatever the utilisation.
	UrgentAfter time.Duration
}

// NIWDeadline is when a deferred request is due (SageServe section 2.2).
const NIWDeadline = 24 * time.Hour

// SageNIW is the paper's: two below 50 %, one below 60 %, urgent after 10 h.
func SageNIW() NIW { return NIW{OneBelow: 0.60, TwoBelow: 0.50, UrgentAfter: 10 * time.Hour} }

// AutoNIW is for the strategy auto: one below 65 %, two below 55 %, for it fills
// replicas further than the paper's; interactive requests are sent elsewhere from
// 70 % on only. Urgent after 20 h: a day has a night, in which the least number of
// replicas has room, and work that becomes urgent after 10 h is often sent at the next
// peak instead.
func AutoNIW() NIW { return NIW{OneBelow: 0.65, TwoBelow: 0.55, UrgentAfter: 20 * time.Hour} }

// NIWOf is the queue manager that goes with a strategy.
func NIWOf(strategy string) NIW {
	if strategy == "auto" {
		return AutoNIW()
	}
	return SageNIW()
}

// Release is how many requests are sent to an endpoint whose memory is used to so
// much, 0..1.
func (n NIW) Release(utilisation float64) int {
	switch {
	case utilisation < n.TwoBelow:
		return 2
	case utilisation < n.OneBelow:
		return 1
	}
	return 0
}

// Priority is that of a request of an age: 1 = behind all interactive ones, 0 =
// among them.
func (n NIW) Priority(age time.Duration) int {
	if age >= n.UrgentAfter {
		return 0
	}
	return 1
}
