package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Notice asks whether the cloud will take the machine, and when.
type Notice func(ctx context.Context) (at time.Time, coming bool, err error)

// gcpGrace is how long Google leaves a spot machine that it takes; gcpMaintenance, how long
// before the maintenance of its host one with GPUs hears of it, which stops it.
const (
	gcpGrace       = 30 * time.Second
	gcpMaintenance = time.Hour
)

// NoticeAWS asks for the interruption of a spot instance, by IMDSv2; base is empty but
// in tests.
func NoticeAWS(base string) Notice {
	base = orBase(base, awsMetadata)
	return func(ctx context.Context) (at time.Time, coming bool, err error) {
		token, err := metadata(ctx, http.MethodPut, base+"/latest/api/token", http.Header{"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": {"60"}}, "")
		if err != nil {
			return at, false, err
		}
		text, err := metadata(ctx, http.MethodGet, base+"/latest/meta-data/spot/instance-action", http.Header{"X-Aws-Ec2-Metadata-Token": {token}}, "")
		if isNothing(err) {
			return at, false, nil
		}
		if err != nil {
			return at, false, err
		}
		var action struct {
			Time time.Time `json:"time"`
		}
		if err := json.Unmarshal([]byte(text), &action); err != nil {
			return at, false, fmt.Errorf("reading the notice of interruption: %w", err)
		}
		return action.Time, true, nil
	}
}

// NoticeGCP asks whether a spot machine at Google was preempted, or one with GPUs is to be
// stopped while its host is maintained, about every two weeks; base is empty but in tests.
func NoticeGCP(base string) Notice {
	base = orBase(base, gcpMetadata)
	return func(ctx context.Context) (at time.Time, coming bool, err error) {
		text, err := metadata(ctx, http.MethodGet, base+"/computeMetadata/v1/instance/preempted", gcpHeader, "")
		if err != nil {
			return at, false, err
		}
		if strings.TrimSpace(text) == "TRUE" {
			return time.Now().Add(gcpGrace), true, nil
		}
		text, err = metadata(ctx, http.MethodGet, base+"/computeMetadata/v1/instance/maintenance-event", gcpHeader, "")
		if isNothing(err) {
			return at, false, nil
		}
		if err != nil || strings.TrimSpace(text) != "TERMINATE_ON_HOST_MAINTENANCE" {
			return at, false, err
		}
		return time.Now().Add(gcpMaintenance), true, nil
	}
}

// isNothing says whether a metadata server has nothing to say.
func isNothing(err error) bool {
	var me *metadataError
	return errors.As(err, &me) && me.status == http.StatusNotFound
}
