package fakecloud

// identityAnswer is who calls.
type identityAnswer struct {
	Arn, Account string
	UserID       string `xml:"UserId"`
}

// callerIdentity is the one caller that there is.
func callerIdentity() identityAnswer {
	return identityAnswer{"arn:aws:iam::" + AWSAccount + ":user/operator", AWSAccount, "AIDAOPERATOR"}
}
