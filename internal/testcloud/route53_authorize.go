package testcloud

import (
	"fmt"
	"net/http"
	"strings"
)

// authorize rejects a machine's call that the policies of its role do not allow: resources and condition keys are those of
// the Service Authorization Reference of Route 53.
func (r *Route53) authorize(c route53Call, action string) error {
	scope := credentialScope().FindStringSubmatch(c.Header.Get("Authorization"))
	if r.Machines == nil || scope == nil {
		return nil
	}
	id := awsCall{key: scope[1]}.callerMachine()
	if id == "" {
		return nil
	}
	q := iamRequest{action: action, resource: "*", context: iamContext{}}
	if kind, _, named := strings.Cut(strings.TrimPrefix(c.URL.Path, "/2013-04-01/"), "/"); named && c.PathValue("id") != "" {
		q.resource = "arn:aws:route53:::" + kind + "/" + c.PathValue("id")
	}
	if strings.HasSuffix(action, ":ChangeResourceRecordSets") {
		var batch struct {
			Changes []change `xml:"ChangeBatch>Changes>Change"`
		}
		if err := c.decode(&batch); err != nil {
			return err
		}
		for _, ch := range batch.Changes {
			q.context.addValue("route53:ChangeResourceRecordSetsNormalizedRecordNames", strings.TrimSuffix(fullyQualified(ch.ResourceRecordSet.Name), "."))
			q.context.addValue("route53:ChangeResourceRecordSetsRecordTypes", ch.ResourceRecordSet.Type)
			q.context.addValue("route53:ChangeResourceRecordSetsActions", ch.Action)
		}
	}
	who, ok, err := r.Machines.roleAllows(id, q)
	if err == nil && !ok {
		err = &route53Error{http.StatusForbidden, "AccessDenied", fmt.Sprintf("User: %s is not authorized to perform: %s on resource: %s", who, q.action, q.resource)}
	}
	return err
}

// roleAllows reports whether the policies of a machine's role allow a request; who is the caller's ARN.
func (a *AWS) roleAllows(id string, q iamRequest) (who string, ok bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	role := a.roleOfMachine(id)
	if role == nil {
		return id, false, nil
	}
	policies, err := role.parsedPolicies()
	return fmt.Sprintf("arn:aws:sts::%s:assumed-role/%s/%s", AWSAccount, role.name, id), allowed(policies, q), err
}
