package forecast

import (
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
