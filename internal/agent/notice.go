package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// InterruptionPoller reports whether the cloud is about to interrupt the machine, and when.
type InterruptionPoller func(ctx context.Context) (at time.Time, announced bool, err error)

// gcpGrace is the time between Google's preemption notice and the end of the machine.
const gcpGrace = 30 * time.Second

// PollSpotAWS polls for the interruption of a spot instance, with IMDSv2; base is only set in
// tests.
func PollSpotAWS(base string) InterruptionPoller {
	base = baseURLOr(base, awsMetadata)
	return func(ctx context.Context) (at time.Time, announced bool, err error) {
		text, found, err := readIMDS(ctx, base, "/latest/meta-data/spot/instance-action")
		if err != nil || !found {
			return at, false, err
		}
		var action struct {
			Time time.Time `json:"time"`
		}
		if err := json.Unmarshal([]byte(text), &action); err != nil {
			return at, false, fmt.Errorf("parsing the interruption notice: %w", err)
		}
		return action.Time, true, nil
	}
}

// newIMDSSession returns a function that reads the metadata of a machine at AWS, with an IMDSv2
// token that is valid for a minute.
func newIMDSSession(ctx context.Context, base string) (read func(ctx context.Context, path string) (string, error), err error) {
	token, err := requestMetadata(ctx, http.MethodPut, base+"/latest/api/token", http.Header{"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": {"60"}}, "")
	return func(ctx context.Context, path string) (string, error) {
		return requestMetadata(ctx, http.MethodGet, base+path, http.Header{"X-Aws-Ec2-Metadata-Token": {token}}, "")
	}, err
}

// PollPreemptionGCP polls for the preemption of a spot machine at Google; base is only set in tests.
func PollPreemptionGCP(base string) InterruptionPoller {
	base = baseURLOr(base, gcpMetadata)
	return func(ctx context.Context) (at time.Time, announced bool, err error) {
		text, err := requestMetadata(ctx, http.MethodGet, base+"/computeMetadata/v1/instance/preempted", gcpHeader, "")
		if err != nil || strings.TrimSpace(text) != "TRUE" {
			return at, false, err
		}
		return time.Now().Add(gcpGrace), true, nil
	}
}
