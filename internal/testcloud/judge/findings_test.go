//go:build compare

package judge

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"skyserve/provision/record"
)

// jsonCall returns a call with JSON bodies.
func jsonCall(method, address, target, sent, received string) record.Call {
	c := record.Call{Request: record.Request{Method: method, URL: address, Headers: map[string]string{}}, Response: &record.Response{Status: http.StatusOK}}
	if target != "" {
		c.Request.Headers["X-Amz-Target"] = target
		c.Request.Headers["Content-Type"] = "application/x-amz-json-1.1"
	}
	if sent != "" {
		c.Request.JSON = []byte(sent)
	}
	if received != "" {
		c.Response.JSON = []byte(received)
	}
	return c
}

// xmlCall returns a call to S3 or Route 53.
func xmlCall(method, address, sent string, status int, received string) record.Call {
	c := record.Call{
		Request:  record.Request{Method: method, URL: address, Headers: map[string]string{"X-Amz-Content-Sha256": "x"}},
		Response: &record.Response{Status: status, Headers: map[string]string{"Location": "x"}},
	}
	c.Request.XML, c.Response.XML = sent, received
	return c
}

// tokenCall returns a call to Google's sts.
func tokenCall(form, received string) record.Call {
	c := jsonCall("POST", "https://sts.googleapis.com/v1/token", "", "", received)
	c.Request.Form, _ = url.ParseQuery(form)
	return c
}

// formCall returns a call to EC2.
func formCall(form, received string) record.Call {
	values, _ := url.ParseQuery(form + "&Version=2016-11-15")
	c := record.Call{Request: record.Request{Method: "POST", URL: "https://ec2.us-east-1.amazonaws.com/"}, Response: &record.Response{Status: http.StatusOK}}
	c.Request.Form, c.Response.XML = values, received
	return c
}

// finding is a call with the only finding that it must have; empty = none.
type finding struct {
	call record.Call
	want string
}

const (
	quotaTarget = "ServiceQuotasV20190624.GetServiceQuota"
	quotaAsk    = `{"ServiceCode":"ec2","QuotaCode":"L-DB2E81BA"}`
	bucket      = "https://skyserve-program-1.s3.us-east-1.amazonaws.com/"
	buckets     = "https://s3.us-east-1.amazonaws.com/?x-id=ListBuckets"
	zones       = "https://route53.amazonaws.com/2013-04-01/"
	check       = `<CreateHealthCheckRequest><CallerReference>a</CallerReference><HealthCheckConfig><Type>HTTP</Type></HealthCheckConfig></CreateHealthCheckRequest>`
	checked     = `<R><HealthCheck><Id>h</Id><CallerReference>a</CallerReference><HealthCheckConfig><Type>HTTP</Type></HealthCheckConfig><HealthCheckVersion>1</HealthCheckVersion></HealthCheck></R>`
)

// Each judge of AWS's calls finds a wrong name, type, value and status, and accepts a correct call.
func TestAWSJudgeFindsMutations(t *testing.T) {
	loaded := loadModels(t)
	for _, f := range []finding{
		{formCall("Action=DescribeVpcs&VpcId.1=vpc-1", `<R><vpcSet><item><vpcId>v</vpcId></item></vpcSet></R>`), ""},
		{formCall("Action=DescribeVpc", ""), "no such operation"},
		{formCall("Action=DescribeVpcs&Vpc.1=vpc-1", `<R/>`), "unknown parameter Vpc.1"},
		{formCall("Action=DescribeVpcs&MaxResults=3", `<R/>`), "MaxResults is \"3\", its length or value is out of bounds"},
		{formCall("Action=DescribeVpcs", `<R><vpcSet><item><vpc>v</vpc></item></vpcSet></R>`), "unknown element .vpcSet[].vpc"},
		{formCall("Action=TerminateInstances", `<R/>`), "missing parameter InstanceId"},

		{jsonCall("POST", "https://x/", quotaTarget, quotaAsk, `{"Quota":{"Value":8}}`), ""},
		{jsonCall("POST", "https://x/", quotaTarget, `{"ServiceCode":"ec2"}`, `{}`), "missing field .QuotaCode"},
		{jsonCall("POST", "https://x/", quotaTarget, quotaAsk, `{"Quota":{"Limit":8}}`), "unknown field .Quota.Limit"},
		{jsonCall("POST", "https://x/", quotaTarget, quotaAsk, `{"Quota":{"Value":"8"}}`), "response: .Quota.Value is 8, want a double"},
		{jsonCall("POST", "https://x/", "AWSPriceListService.GetProducts", `{"ServiceCode":"AmazonEC2","Filters":[{"Type":"EXACT","Field":"a","Value":"b"}]}`, `{}`), ".Filters[].Type is EXACT"},

		{xmlCall("GET", buckets, "", 200, `<L><Buckets><Bucket><Name>a</Name></Bucket></Buckets></L>`), ""},
		{xmlCall("GET", buckets, "", 200, `<L><Buckets><Item/></Buckets></L>`), "element Item of the list .Buckets, want Bucket"},
		{xmlCall("PUT", bucket+"?tagging", `<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>`, 200, ""), ""},
		{xmlCall("PUT", bucket+"?tagging", `<Tagging><TagSet><Tag><Key>k</Key></Tag></TagSet></Tagging>`, 200, ""), "missing element .TagSet[].Value"},
		{xmlCall("PUT", bucket+"?tagging", "", 200, ""), "it has no body"},
		{xmlCall("GET", bucket+"?list-type=2&prefx=a", "", 200, `<L/>`), "unknown parameter prefx"},
		{xmlCall("GET", bucket+"?list-type=2", "", 200, `<L><Contents><Key>a</Key><Bytes>1</Bytes></Contents></L>`), "unknown element .Contents[].Bytes"},
		{xmlCall("DELETE", bucket, "", 200, ""), "status 200, want 204"},
		{xmlCall("PATCH", bucket, "", 200, ""), "no such operation"},

		{xmlCall("POST", zones+"healthcheck", check, 201, checked), ""},
		{xmlCall("POST", zones+"healthcheck", check, 200, checked), "status 200, want 201"},
		{xmlCall("POST", zones+"healthcheck", strings.Replace(check, ">HTTP<", ">HTTP2<", 1), 201, checked), `.HealthCheckConfig.Type is "HTTP2"`},
		{xmlCall("POST", zones+"healthcheck", check, 201, strings.Replace(checked, "<HealthCheckVersion>1</HealthCheckVersion>", "", 1)), "missing element .HealthCheck.HealthCheckVersion"},
		{xmlCall("GET", zones+"hostedzone/Z1/rrset?maxitem=3", "", 200, `<R><ResourceRecordSets/><IsTruncated>false</IsTruncated><MaxItems>3</MaxItems></R>`), "unknown parameter maxitem"},
		{xmlCall("GET", zones+"tags/machine/h", "", 200, `<R><ResourceTagSet/></R>`), `path ResourceType is "machine"`},
	} {
		m, action := findOperation(loaded, f.call)
		if m == nil {
			t.Errorf("%s %s: no service", f.call.Request.Method, f.call.Request.URL)
			continue
		}
		f.compare(t, m.judge(action, f.call))
	}
}

const (
	gceZone  = "https://compute.googleapis.com/compute/v1/projects/p/zones/us-central1-a/"
	exchange = "grant_type=g&requested_token_type=t&subject_token=s&subject_token_type=a&audience=b&scope=c"
	gceDone  = `{"kind":"compute#operation","id":"1","name":"o","selfLink":"s","status":"RUNNING"}`
)

// The judge of Google's calls finds a wrong name, type, value and method, and accepts a correct call.
func TestGoogleJudgeFindsMutations(t *testing.T) {
	documents := loadDocuments(t)
	for _, f := range []finding{
		{jsonCall("POST", gceZone+"instances?requestId=r", "", `{"name":"a","scheduling":{"provisioningModel":"SPOT"}}`, gceDone), ""},
		{jsonCall("POST", gceZone+"instances?request=r", "", `{"name":"a"}`, gceDone), "unknown parameter request"},
		{jsonCall("POST", gceZone+"instances", "", `{"naem":"a"}`, gceDone), "unknown field .naem"},
		{jsonCall("POST", gceZone+"instances", "", `{"name":1}`, gceDone), ".name is 1, want a string"},
		{jsonCall("POST", gceZone+"instances", "", `{"name":"A"}`, gceDone), ".name is A, want the pattern"},
		{jsonCall("POST", gceZone+"instances", "", `{"status":"RUNNING"}`, gceDone), "output only"},
		{jsonCall("POST", gceZone+"instances", "", `{"scheduling":{"provisioningModel":"CHEAP"}}`, gceDone), ".scheduling.provisioningModel is CHEAP"},
		{jsonCall("POST", gceZone+"instances", "", `{"disks":{}}`, gceDone), ".disks is map[], want array"},
		{jsonCall("POST", gceZone+"instances", "", `{"name":"a"}`, strings.Replace(gceDone, `"id":"1",`, "", 1)), "missing field .id"},
		{jsonCall("POST", gceZone+"instances", "", `{"name":"a"}`, strings.Replace(gceDone, "#operation", "#job", 1)), "kind is compute#job"},
		{jsonCall("GET", gceZone+"machineTypes?maxResults=many", "", "", `{"kind":"compute#machineTypeList","id":"i","selfLink":"s"}`), `maxResults is "many", want the format uint32`},
		{jsonCall("PATCH", gceZone+"instances", "", "{}", "{}"), "no method"},
		{jsonCall("GET", "https://iam.googleapis.com/compute/v1/projects/p", "", "", "{}"), "no method"},
		{jsonCall("POST", "https://iam.googleapis.com/v1/projects/-/serviceAccounts/a@b:testIamPermissions", "", `{"permissions":"x"}`, "{}"), ".permissions is x, want array"},

		{tokenCall(exchange, `{"access_token":"a","issued_token_type":"t","token_type":"Bearer","expires_in":3600}`), ""},
		{tokenCall(exchange, `{"accessToken":"a"}`), "response: unknown field .accessToken"},
		{tokenCall(exchange, `{"expires_in":"3600"}`), "response: .expires_in is 3600, want a integer"},
		{tokenCall(exchange+"&lifetime=1", `{}`), "request: unknown field .lifetime"},
		{tokenCall("grant_type=g", `{}`), "request: missing field .subjectToken"},
	} {
		d, m := findMethod(documents, f.call.Request)
		if m == nil {
			f.compare(t, []string{"no method"})
			continue
		}
		f.compare(t, d.judge(m, f.call))
	}
}

// compare reports findings other than the wanted one.
func (f finding) compare(t *testing.T, found []string) {
	t.Helper()
	if f.want == "" && len(found) > 0 || f.want != "" && !slices.ContainsFunc(found, func(s string) bool { return strings.Contains(s, f.want) }) {
		t.Errorf("%s %s: found %q, want %q", f.call.Request.Method, f.call.Request.URL, found, f.want)
	}
}
