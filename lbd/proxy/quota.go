package proxy

import (
	"fmt"
	"net/http"
	"time"
)

// period is what a quota is for, by UTC's calendar.
type period string

const (
	aDay   period = "day"
	aMonth period = "month"
)

// end is when the period that holds t ends.
func (p period) end(t time.Time) time.Time {
	y, m, d := t.UTC().Date()
	if p == aMonth {
		return time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC)
	}
	return time.Date(y, m, d+1, 0, 0, 0, 0, time.UTC)
}

// codeRateLimit and codeQuota are the codes that OpenAI's clients know.
const (
	codeRateLimit = "rate_limit_exceeded"
	codeQuota     = "insufficient_quota"
)

// errRate answers a request over a limit of what kind says, as OpenAI does;
// a wait of 0 means that it would never pass.
func errRate(kind string, wait time.Duration, format string, args ...any) *apiError {
	return &apiError{
		status: http.StatusTooManyRequests, kind: kind, code: codeRateLimit,
		message: "rate limit reached: " + fmt.Sprintf(format, args...), retryAfter: seconds(wait),
	}
}

// errQuota answers a request over a quota.
func errQuota(what string, most int, p period, now time.Time) *apiError {
	return &apiError{
		status: http.StatusTooManyRequests, kind: codeQuota, code: codeQuota,
		message:    fmt.Sprintf("quota reached: this key may use %d %s a %s", most, what, p),
		retryAfter: seconds(p.end(now).Sub(now)),
	}
}

// seconds is a wait in whole seconds, rounded up.
func seconds(wait time.Duration) int { return int((wait + time.Second - 1) / time.Second) }
