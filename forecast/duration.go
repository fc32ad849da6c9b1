package forecast

import (
	"strings"
	"time"
)

// ShortDuration formats a duration without trailing zero units: 1h for 1h0m0s. A duration of 0 is
// "".
func ShortDuration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
