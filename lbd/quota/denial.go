package quota

import (
	"fmt"
	"strconv"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/service"
)

// period is the period of a quota, by the UTC calendar.
type period string

const (
	oneDay   period = "day"
	oneMonth period = "month"
)

// end returns the end of the period that contains t.
func (p period) end(t time.Time) time.Time {
	y, m, d := t.UTC().Date()
	if p == oneMonth {
		return time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC)
	}
	return time.Date(y, m, d+1, 0, 0, 0, 0, time.UTC)
}

// The error codes of denials, as in OpenAI's API.
const (
	codeRateLimit = "rate_limit_exceeded"
	codeQuota     = "insufficient_quota"
)

// Denial is the reason why a request is not admitted, for the client's 429 response.
type Denial struct {
	// Kind is the type of the error in OpenAI's format: the exceeded resource (requests or tokens),
	// or codeQuota. Code is codeRateLimit or codeQuota.
	Kind, Code string
	Message    string
	RetryAfter int // seconds; 0 = the request can never be admitted
	// Limit names the quota or budget of a period that is used up, such as "quota of key bob (1 request per day)";
	// empty for other denials. Until is the end of the period.
	Limit string
	Until time.Time
}

// Dropped is the denial with which a dropped account answers a caller that still holds it. Clients do not receive it:
// Ledger.Reopen returns the account that may admit the request.
var Dropped = &Denial{Kind: "requests", Code: codeRateLimit, Message: "the account of this user was dropped", RetryAfter: 1}

// OverRate returns the denial of a request over a rate limit; kind is OpenAI's name of the
// resource. A wait of 0 means that the request can never be admitted.
func OverRate(kind string, wait time.Duration, format string, args ...any) *Denial {
	return &Denial{Kind: kind, Code: codeRateLimit, Message: "rate limit reached: " + fmt.Sprintf(format, args...), RetryAfter: seconds(wait)}
}

// quotaReached returns the denial of a request over a quota.
func (a *Account) quotaReached(unit string, limit int, p period, now time.Time) *Denial {
	return a.periodDenial("quota", printable.Count(limit, unit), p, now, "")
}

// budgetReached returns the denial of a request over a budget in US dollars.
func (a *Account) budgetReached(usd float64, p period, now time.Time) *Denial {
	return a.periodDenial("budget", dollars(usd)+" USD", p, now, ", and requests in flight reserve their expected cost")
}

// largerThanQuota returns the denial of a request that alone exceeds a quota.
func largerThanQuota(h holder, tokens int64, limit int, p period) *Denial {
	return neverAdmitted("quota: it may use %d tokens, and the limit of this %s is %d per %s", tokens, h, limit, p)
}

// largerThanBudget returns the denial of a request that alone exceeds a budget in US dollars.
func largerThanBudget(h holder, cost service.NanoUSD, usd float64, p period) *Denial {
	return neverAdmitted("budget: it may cost %s USD, and the limit of this %s is %s USD per %s", dollars(cost.USD()), h, dollars(usd), p)
}

// neverAdmitted returns the denial of a request that is larger than a limit, however long the client waits.
func neverAdmitted(format string, args ...any) *Denial {
	message := "the request is larger than the " + fmt.Sprintf(format, args...) + "; shorten it or set a lower max_tokens"
	return &Denial{Kind: codeQuota, Code: codeQuota, Message: message}
}

// dollars formats an amount without rounding.
func dollars(usd float64) string { return strconv.FormatFloat(usd, 'f', -1, 64) }

// periodDenial returns the denial of a request over a quota or budget of a period; note ends its message.
func (a *Account) periodDenial(kind, amount string, p period, now time.Time, note string) *Denial {
	limit, end := fmt.Sprintf("%s per %s", amount, p), p.end(now)
	return &Denial{
		Kind: codeQuota, Code: codeQuota, Message: fmt.Sprintf("%s reached: the limit of this %s is %s%s", kind, a.holder, limit, note),
		RetryAfter: seconds(end.Sub(now)), Limit: fmt.Sprintf("%s of %s %s (%s)", kind, a.holder, a.name, limit), Until: end,
	}
}

// seconds returns a wait in whole seconds, rounded up.
func seconds(wait time.Duration) int { return int((wait + time.Second - 1) / time.Second) }
