package provision

import (
	"encoding/json"
	"fmt"
	"time"
)

// CheckResult is the result of one check, of `skyserve doctor` or before anything is created.
type CheckResult struct {
	// Where is the cloud or the region: gcp, gcp/us-central1.
	Where string `json:"where"`
	OK    bool   `json:"ok"`
	// Warning marks a passed check that will fail, or become costly, without a change.
	Warning bool `json:"warning,omitempty"`
	// Message names the check and its result.
	Message string `json:"message"`
	// Hint is the next step; empty where none is needed.
	Hint string `json:"hint,omitempty"`
}

// DescribeClock describes how far this machine's clock is ahead of a cloud's; below 0 = behind.
func DescribeClock(ahead time.Duration, cloud string) string {
	if ahead < 0 {
		return fmt.Sprintf("clock: %s behind %s", -ahead, cloud)
	}
	return fmt.Sprintf("clock: %s ahead of %s", ahead, cloud)
}

// MarshalJSON adds the former key of Message.
func (r CheckResult) MarshalJSON() ([]byte, error) {
	type plain CheckResult
	return json.Marshal(struct {
		plain
		OldMessage string `json:"what"`
	}{plain(r), r.Message})
}
