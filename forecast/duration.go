package forecast

import (
	"fmt"
	"time"

	"skyserve/internal/service"
)

// ShortDuration formats a duration without trailing zero units: 1h for 1h0m0s. A duration of 0 is
// "".
func ShortDuration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return service.FormatDuration(d)
}

// DurationInWords formats a duration in whole units, as large as possible: 2 hours, 90 minutes.
func DurationInWords(d time.Duration) string {
	for _, u := range []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}} {
		if n := d / u.size; d >= u.size && d%u.size == 0 {
			if n == 1 {
				return "1 " + u.name
			}
			return fmt.Sprintf("%d %ss", n, u.name)
		}
	}
	return d.String()
}
