"""What nobody knows in public: how many records, which bounds, which labels."""
