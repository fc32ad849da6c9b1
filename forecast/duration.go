package forecast

import (
	"strings"
	"time"
)

// ShortDuration writes a duration without its zero ends: 1h for 1h0m0s. No
// duration is "".
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
