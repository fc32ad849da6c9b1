package record

import (
	"net/http"
	"strings"
	"testing"
)

// A name that looks random hides neither the names around it in a path nor the operation of AWS's JSON protocols.
func TestOperationsStayReadable(t *testing.T) {
	const random, own = "vm-a1b2c3d4e5f6a7b8c9d0e1f2", "skyserve-replica-chat--us-0-a1b2c3d4e5f6"
	for path, want := range map[string]string{
		"/compute/v1/projects/acme-prod/zones/us-central1-a/instances/" + random + "/getGuestAttributes": "/compute/v1/projects/project-00001/zones/us-central1-a/instances/REDACTED-1/getGuestAttributes",
		"/compute/v1/projects/acme-prod/zones/us-central1-a/instances/" + own + "/getGuestAttributes":    "/compute/v1/projects/project-00001/zones/us-central1-a/instances/" + own + "/getGuestAttributes",
		"/v1/projects/-/serviceAccounts/skyserve-chat-lb@acme-prod.iam.gserviceaccount.com":              "/v1/projects/-/serviceAccounts/skyserve-chat-lb@project-00001.iam.gserviceaccount.com",
		"/storage/v1/b/bucket/o/batches%2Fchat%2Ffile-1.0":                                               "/storage/v1/b/bucket/o/batches%2Fchat%2Ffile-1.0",
		"/2013-04-01/hostedzone/Z0123456789ABCDEFGHIJ/rrset":                                             "/2013-04-01/hostedzone/Z0123456789ABCDEFGHIJ/rrset",
		"/v1/projects/-/serviceAccounts/sa@acme-prod.iam.gserviceaccount.com:testIamPermissions":         "/v1/projects/-/serviceAccounts/REDACTED-1:testIamPermissions",
	} {
		request, _ := http.NewRequest("GET", "https://cloud"+path, nil)
		request.Header.Set("X-Amz-Target", "ServiceQuotasV20190624.GetServiceQuota")
		request.Header.Set("X-Amz-Object-Ownership", "BucketOwnerEnforced")
		got := NewRedactor(nil).Request(request, nil)
		if at := strings.TrimPrefix(got.URL, "https://cloud"); at != want {
			t.Errorf("%s is recorded as %s, want %s", path, at, want)
		}
		if got.Headers["X-Amz-Target"] != "ServiceQuotasV20190624.GetServiceQuota" || got.Headers["X-Amz-Object-Ownership"] != "BucketOwnerEnforced" {
			t.Errorf("the headers are %v", got.Headers)
		}
	}
}
