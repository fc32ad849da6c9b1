// Package concurrency learns how many requests an engine runs at once, if nothing reports it. It
// counts only events that a balancer sees: first tokens and ends of requests.
//
// A request that has had its first token and has not ended is streaming, so the engine runs it. An
// engine with N slots never streams more than N requests, however many it has; an engine with free
// capacity streams more if it gets more, except for those that are in their prefill. Therefore a
// limit is too high if a lower one leaves as many requests streaming, and too low if a higher one
// leaves more. Limit tries both, rarely, and only while its limit holds requests back.
//
// All measures are counts of requests, so that neither the speed of the engine nor the length of
// prompts matters. Requests without a first token only show that they do not stream; no single request can lower a limit.
package concurrency

const (
	// A period lasts minFirstTokens first tokens, plus turnovers first tokens for each request that streams, so
	// that each slot serves several requests in it.
	minFirstTokens = 8
	turnovers      = 3
	// A lower limit is tried if more than 1/excessDivisor of the outstanding requests would not have been needed.
	excessDivisor = 8
	// A higher limit is higher by 1/raiseDivisor, at least by minRaise: one request may never stream. It is
	// justified if at least 1/gainDivisor of the additional requests stream: with free capacity nearly all of
	// them do, without it none.
	raiseDivisor = 4
	minRaise     = 2
	gainDivisor  = 4
	// After a trial that failed, the next one begins after 2, 4, 8 ... periods, up to maxBackoff: with an
	// engine that does not change, one period in 32 is a trial.
	firstBackoff = 2
	maxBackoff   = 32
	// At most 1/briefDivisor of the requests of a period that lowers a limit may be brief: end together
	// with their first token, such as one that is not streamed. They are not counted as streaming
	// although the engine runs them.
	briefDivisor = 8
	// A request is brief if it streams for less than 1/(briefStreamDivisor x outstanding) of its time to the first token.
	briefStreamDivisor = 10
	// Max bounds a limit.
	Max = 1 << 14
)

// Limit is the learned limit of the outstanding requests at an engine. The zero value has learned
// nothing.
type Limit struct {
	value int // 0 = the initial one
	// full: a higher limit did not make the engine run more requests. Otherwise an engine that runs as
	// many as the limit allows may run more.
	full     bool
	trial    trial
	baseline baseline // during a trial
	period   period
	settling int // first tokens until the period of a trial begins

	lowerBackoff, higherBackoff trialBackoff
}

// baseline is the last period before a trial.
type baseline struct {
	limit          int
	minOutstanding int // lowest number of outstanding requests while it was counted
	maxStreaming   int // requests that streamed at once
}

// trial is the kind of a trial.
type trial int8

const (
	noTrial trial = iota
	lower
	higher
)

// period counts requests while more were outstanding than were streaming: only then do the counts show the
// engine's limit.
type period struct {
	firstTokens    int // first tokens
	atLimit        int // of those, the ones with as many requests outstanding as the limit allows
	maxStreaming   int // requests that streamed at once
	minOutstanding int // lowest number of outstanding requests at those first tokens
	ended          int
	brief          int // of those that ended
}

// addToken counts a first token under a limit.
func (p *period) addToken(streaming, outstanding, limit int) {
	p.maxStreaming = max(p.maxStreaming, streaming)
	if outstanding >= limit {
		p.atLimit++
	} else if outstanding <= p.maxStreaming+1 {
		return
	}
	if p.firstTokens++; p.firstTokens == 1 || outstanding < p.minOutstanding {
		p.minOutstanding = outstanding
	}
}

// over reports whether the period was long enough.
func (p *period) over() bool { return p.firstTokens >= minFirstTokens+turnovers*p.maxStreaming }

// conclusive reports whether its requests streamed, so that a low number of streaming ones means
// that the others waited.
func (p *period) conclusive() bool { return p.brief*briefDivisor <= p.ended }

// trialBackoff delays trials, in periods.
type trialBackoff struct{ left, last int }

// countPeriod counts a period, and reports whether the backoff has ended.
func (p *trialBackoff) countPeriod() bool {
	p.left--
	return p.left < 0
}

// extend begins a backoff that is twice as long as the last one.
func (p *trialBackoff) extend() {
	p.last = min(max(2*p.last, firstBackoff), maxBackoff)
	p.left = p.last
}

// Value returns the limit; initial until something else is known.
func (l *Limit) Value(initial int) int {
	if l.value == 0 {
		return initial
	}
	return l.value
}

// FirstToken records the first token of a request, with the numbers of requests that are then
// streaming and outstanding at the engine.
func (l *Limit) FirstToken(streaming, outstanding, initial int) {
	limit := l.Value(initial)
	switch {
	case streaming >= limit && !l.full:
		l.set(higherThan(limit), noTrial)
		l.lowerBackoff, l.higherBackoff = trialBackoff{}, trialBackoff{}
		return
	case l.trial == lower && outstanding > limit: // they were sent under the higher limit
		return
	case l.trial != noTrial && outstanding < limit: // demand is low
		return
	case l.settling > 0:
		l.settling--
		return
	}
	if l.period.addToken(streaming, outstanding, limit); l.period.over() {
		l.endPeriod(limit)
	}
}

// Ended records the end of a request that had a first token. ttft is the time until that, and
// streamed the time from it, in any unit; outstanding includes the request.
func (l *Limit) Ended(ttft, streamed int64, outstanding int) {
	l.period.ended++
	if streamed < ttft/int64(briefStreamDivisor*max(1, outstanding)) {
		l.period.brief++
	}
}

func higherThan(limit int) int { return limit + max(minRaise, limit/raiseDivisor) }

// set changes the limit. The period of a trial begins after value first tokens, so that requests of
// the old limit have left.
func (l *Limit) set(value int, t trial) {
	l.value, l.trial, l.period, l.settling = min(max(1, value), Max), t, period{}, 0
	if l.full = false; t != noTrial {
		l.settling = l.value
	}
}

// endPeriod decides after a period under a limit.
func (l *Limit) endPeriod(limit int) {
	p := l.period
	l.period = period{}
	switch l.trial {
	case lower:
		l.endLower(limit, p)
	case higher:
		l.endHigher(limit, p)
	default:
		l.beginTrial(limit, p)
	}
}

// beginTrial tries another limit, if it is time for one.
func (l *Limit) beginTrial(limit int, p period) {
	l.baseline = baseline{limit: limit, minOutstanding: p.minOutstanding, maxStreaming: p.maxStreaming}
	switch needed := p.maxStreaming + 1; {
	case p.conclusive() && needed < p.minOutstanding-p.minOutstanding/excessDivisor && l.lowerBackoff.countPeriod():
		l.set(needed, lower)
	case 2*p.atLimit >= p.firstTokens && l.higherBackoff.countPeriod():
		l.set(higherThan(limit), higher)
	}
}

// endLower keeps a lower limit if it leaves as many requests streaming.
func (l *Limit) endLower(limit int, p period) {
	if !p.conclusive() || l.baseline.maxStreaming-p.maxStreaming > (l.baseline.minOutstanding-limit)/gainDivisor {
		l.set(l.baseline.limit, noTrial)
		l.lowerBackoff.extend()
		return
	}
	l.trial, l.lowerBackoff = noTrial, trialBackoff{}
}

// endHigher keeps a higher limit if it makes more requests stream. Otherwise the engine is full: the limit becomes
// the number that streamed before.
func (l *Limit) endHigher(limit int, p period) {
	b := l.baseline
	if p.maxStreaming-b.maxStreaming >= max(1, (limit-b.limit)/gainDivisor) {
		l.trial, l.higherBackoff = noTrial, trialBackoff{}
		return
	}
	l.higherBackoff.extend()
	if !p.conclusive() || b.maxStreaming < b.limit-1 {
		l.set(b.limit, noTrial)
		return
	}
	l.set(min(b.maxStreaming, b.limit), noTrial)
	l.full = true
}
